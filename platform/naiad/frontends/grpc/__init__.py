"""The transport of gRPC: calls on the streams of HTTP/2. It knows no service."""

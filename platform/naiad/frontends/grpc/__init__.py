"""The transport of gRPC: calls on streams of HTTP/2. It knows no service; `frontends/kserve_grpc` is one."""

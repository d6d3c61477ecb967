"""HTTP, gRPC and metrics: bytes to engine calls and back."""

"""KServe v2 over gRPC with Triton's extensions."""

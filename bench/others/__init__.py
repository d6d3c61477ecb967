"""naiad beside the servers that its users would pick instead, with the same two models."""

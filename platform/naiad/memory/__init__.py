"""The host's side of the shared segments: who holds which bytes."""

"""Models of other servers: targets, calls, and their supervision."""

"""The server inside another program, and models in tests without a server."""

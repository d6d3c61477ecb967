"""`naiad doctor`: finds what would fail if this machine served a repository, by running the server's own checks."""

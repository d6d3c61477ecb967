"""Looks for what would go wrong with a repository on this machine, before a server is started."""

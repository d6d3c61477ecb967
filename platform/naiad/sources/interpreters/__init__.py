"""Python interpreters on this machine: discovery, probing and versions."""

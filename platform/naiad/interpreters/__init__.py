"""Python interpreters on this machine: where they are, which version they have, whether they run."""

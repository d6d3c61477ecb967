"""Registries: a client for the OCI distribution specification, with Docker's credentials."""

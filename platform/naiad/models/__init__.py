"""What there is to serve: repositories, artifacts, and the resolution of what runs a model."""

"""What is outside of the server and of its models: interpreters, remote files, registries."""

"""A page to look at the server and to try its models."""

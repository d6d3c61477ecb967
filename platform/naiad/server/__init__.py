"""A running server: all composition, its ports and its processes."""

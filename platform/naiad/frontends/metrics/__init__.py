"""The metrics endpoint: families of metrics by origin, and the server that renders them."""

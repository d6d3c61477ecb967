"""Building and packing environments from recipes."""

"""Models in files beside the library that computes them, called directly."""

"""The implementation of the backend: standard library and numpy. Engines import their packages when they start."""

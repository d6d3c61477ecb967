"""Calls that a running model makes to the server: other models (BLS), model control, metrics."""

"""Helpers for `model.py` files, usually imported as `pb_utils`."""

"""Files elsewhere: object stores and whatever else fsspec can read."""

"""Remote storage: object stores and other file systems of fsspec."""

"""Archives of environments: reading, checking, unpacking, signatures."""

"""`naiad env`: commands about execution environments."""

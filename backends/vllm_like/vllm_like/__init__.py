"""What the backend is made of. Standard library and numpy; engines import what they need when they are started."""

"""The guest: loads a model.py in its own interpreter and serves it. Standard library and numpy only, Python 3.8+."""

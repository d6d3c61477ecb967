"""Frontends in separate processes: their messages with the owner of the models, and both sides of them."""

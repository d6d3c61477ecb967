"""Frontends in processes of their own: their messages with the owner of the models, and both sides of them."""

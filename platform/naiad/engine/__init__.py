"""Load, unload, infer, ready, statistics: the only facade for frontends and for calls from models."""

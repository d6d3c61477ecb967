"""Load, unload, infer, ready, statistics: the only door for frontends and for calls from models."""

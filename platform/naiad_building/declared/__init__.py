"""Environments that files declare by their requirements: locked, and built into the store."""

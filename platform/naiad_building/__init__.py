"""Environments that are built here: recipes, locks, builds, packing, and what models declare."""

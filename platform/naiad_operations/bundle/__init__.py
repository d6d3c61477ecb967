"""Bundles: a server with its interpreter, models, backends and environments in one archive or image."""

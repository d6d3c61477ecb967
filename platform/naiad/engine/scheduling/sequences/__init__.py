"""Sequence batching: which instance serves a sequence, and in which order."""

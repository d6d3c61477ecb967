"""Ensembles: the graph of steps, and the progress of one request through it."""

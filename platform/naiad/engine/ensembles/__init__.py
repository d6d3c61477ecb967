"""Ensembles: requests whose steps are requests to other models."""

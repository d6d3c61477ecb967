"""Ensembles: models that consist of requests to other models."""

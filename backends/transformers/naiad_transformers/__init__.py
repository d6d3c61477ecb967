"""Pipelines of Hugging Face's transformers."""

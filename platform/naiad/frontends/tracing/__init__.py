"""Traces of requests: which requests are traced, what is recorded, and where records are written or exported."""

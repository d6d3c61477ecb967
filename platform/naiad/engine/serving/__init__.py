"""One loaded version of a model: its instances, its queue and its requests in flight."""

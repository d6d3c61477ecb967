"""Dynamic batching: the queue, and how batches are formed."""

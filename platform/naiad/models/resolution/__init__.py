"""Which backend, artifacts and environment run a model, and why."""

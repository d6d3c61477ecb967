"""`naiad init`: writes the first files of a model or a shared backend, for its author to change."""

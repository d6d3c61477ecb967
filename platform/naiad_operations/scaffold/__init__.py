"""`naiad init`: writes the first files of a model, a shared backend or a recipe, for its author to change."""

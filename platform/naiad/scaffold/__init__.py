"""First files of a model, a shared backend or a recipe: written once, to be changed by whoever asked for them."""

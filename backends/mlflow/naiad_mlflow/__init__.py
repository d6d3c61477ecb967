"""Models in MLflow's format, called through its flavour `python_function`."""

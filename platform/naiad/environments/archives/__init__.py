"""Archives of environments: formats, safe extraction, writing, manifests and signatures."""

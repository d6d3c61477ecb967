"""Archives that are elsewhere: download, resume, verify."""

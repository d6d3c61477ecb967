"""Environments of guests: interpreters with packages, prepared from archives and directories, or built from recipes."""

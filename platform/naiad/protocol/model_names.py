"""How requests name a model and its version."""

from __future__ import annotations

LATEST = -1  # the version of a request that names none: the model's version policy decides


def model_key(namespace: str, name: str) -> str:
    """The name that identifies a model among all repositories: `<namespace>::<name>`, or *name* without a namespace."""
    return f"{namespace}::{name}" if namespace else name

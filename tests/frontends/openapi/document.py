"""The OpenAPI document of the HTTP endpoints, read once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[3] / "docs" / "reference" / "openapi.yaml"
# The loader in C takes a tenth of the time, in each process of a parallel run.
DOCUMENT: dict[str, Any] = yaml.load(
    FILE.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)


def methods(path: str) -> tuple[str, ...]:
    """The HTTP methods of a path."""
    return tuple(sorted(name.upper() for name in DOCUMENT["paths"][path] if name in {"get", "post"}))


def filled(path: str) -> str:
    """A path with example values for its parameters."""
    return re.sub(r"{\w+}", "x", path.replace("{version}", "1"))

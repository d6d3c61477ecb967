"""Requirements to install, as a requirements file for pip and uv."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Requirements"]


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements to install.

    Attributes:
        text: Content of the requirements file.
        named_in: File that they come from.
        complete: Whether they list all dependencies, so that none are added (`--no-deps`).
        hashed: Whether each has a digest (`--require-hashes`).
    """

    text: str
    named_in: Path
    complete: bool
    hashed: bool

"""Flags that are understood and will not do what whoever gave them has in mind: a sentence for each, to be logged."""

from __future__ import annotations

from collections.abc import Iterator

from naiad.config.given import GivenFlags

__all__ = ["option_warnings"]


def option_warnings(given: GivenFlags) -> Iterator[str]:
    """The sentences."""
    yield from _backend_warnings(given)


def _backend_warnings(given: GivenFlags) -> Iterator[str]:
    # No error, as for the reference: models that bring their own code need no backend, and it may be mounted later.
    for path in given.paths("backend-directory"):
        if not path.is_dir():
            wrong = "is not a directory" if path.exists() else "does not exist"
            yield f"--backend-directory={path} {wrong} ({path.absolute()}): no model will find its backend there"

"""Flags that are understood and will not do what whoever gave them has in mind: a sentence for each, to be logged."""

from __future__ import annotations

from collections.abc import Iterator

from naiad.config.flags import SERVER_FLAGS
from naiad.config.given import GivenFlags

__all__ = ["option_warnings"]

_OPENAI = "openai-port"
"""The flag that has OpenAI's API served, and the beginning of those that say how."""


def option_warnings(given: GivenFlags) -> Iterator[str]:
    """The sentences."""
    yield from _backend_warnings(given)
    yield from _openai_warnings(given)


def _backend_warnings(given: GivenFlags) -> Iterator[str]:
    # No error, as for the reference: models that bring their own code need no backend, and it may be mounted later.
    for path in given.paths("backend-directory"):
        if not path.is_dir():
            wrong = "is not a directory" if path.exists() else "does not exist"
            yield f"--backend-directory={path} {wrong} ({path.absolute()}): no model will find its backend there"


def _openai_warnings(given: GivenFlags) -> Iterator[str]:
    if given.has(_OPENAI):
        return
    family = f"{_OPENAI.partition('-')[0]}-"
    useless = [f"--{flag.name}" for flag in SERVER_FLAGS if flag.name.startswith(family) and given.has(flag.name)]
    if useless:
        verb = "has" if len(useless) == 1 else "have"
        yield f"{', '.join(useless)} {verb} no effect: OpenAI's API is served only with --{_OPENAI}"

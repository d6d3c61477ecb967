"""A callback in place of one that is not needed any more, such as those of a connection that is lost."""

from __future__ import annotations


def do_nothing(*_: object) -> None:
    """Take any arguments, and do nothing."""

"""Numbers in text that clients send, read strictly.

Python's `int` and `float` also accept underscores between digits, spaces around them, the digits of all scripts, and
words such as `nan`. A proxy in front of the server would read another number, or none.
"""

from __future__ import annotations

import re

_INTEGER = re.compile(r"-?[0-9]{1,19}")  # more digits are more than 64 bits
_DECIMAL = re.compile(r"-?[0-9]{1,400}(\.[0-9]{0,400})?([eE][+-]?[0-9]{1,4})?")


def integer(text: str) -> int | None:
    """The integer that *text* is in ASCII digits, with a minus sign at most; None if it is anything else."""
    return int(text) if _INTEGER.fullmatch(text) else None


def decimal(text: str) -> float | None:
    """The number that *text* is in ASCII digits, as JSON and Python write finite numbers; None for anything else."""
    value = float(text) if _DECIMAL.fullmatch(text) else float("inf")
    return value if abs(value) != float("inf") else None

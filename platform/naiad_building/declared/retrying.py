"""Repeating steps that failed for the network, with a growing pause."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

from naiad.core.errors import ExecutionEnvironmentError

__all__ = ["is_temporary", "with_retries"]

_T = TypeVar("_T")
_PAUSES = (1.0, 2.0, 4.0)
# Texts of pip, uv and the libraries below them. A resolver's refusal has none of them.
_TEMPORARY = re.compile(
    r"timed? ?out|Connection (aborted|broken|refused|reset)|NewConnectionError|Temporary failure|Name or service not"
    r"|error sending request|dns error|failed to lookup address|Network is unreachable|RemoteDisconnected"
    r"|IncompleteRead|HTTP (error|status)[^\n]* 5\d\d|\b50[0234] (Server Error|Internal|Bad Gateway|Service|Gateway)"
    r"|connection closed|unexpected end of file",
    re.IGNORECASE,
)


def is_temporary(message: str) -> bool:
    """Whether the message of an installer says that the network, or the index, failed."""
    return _TEMPORARY.search(message) is not None


def with_retries(
    step: Callable[[], _T], progress: Callable[[str], None], *, pause: Callable[[float], None] = time.sleep
) -> _T:
    """The result of a step, which is repeated while it fails for the network.

    Raises:
        ExecutionEnvironmentError: The last failure, or the first one with another cause.
    """
    for number, seconds in enumerate(_PAUSES, 1):
        try:
            return step()
        except ExecutionEnvironmentError as error:
            if not is_temporary(error.message):
                raise
            cause = next(line for line in error.message.splitlines() if is_temporary(line)).strip()
            progress(f"attempt {number} of {len(_PAUSES) + 1} failed, the next one is in {seconds:.0f} s: {cause}")
            pause(seconds)
    return step()

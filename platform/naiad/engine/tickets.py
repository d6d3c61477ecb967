"""Tickets: how the client of an engine names a request, the number of its version's load above the key of the request.

A ticket is larger than the number of any request on a link between processes, which has 32 bits.
"""

from __future__ import annotations

__all__ = ["KEY_BITS", "KEY_MASK", "ticket_of"]

KEY_BITS = 40
KEY_MASK = (1 << KEY_BITS) - 1


def ticket_of(number: int, key: int) -> int:
    """The ticket of a request.

    Args:
        number: Number of the version's load.
        key: Key of the request there.
    """
    return number << KEY_BITS | key

"""Tickets: how the client of an engine names a request, the number of its version's load above the key of the request.

A ticket is larger than the number of any request on a link between processes, which has 32 bits.

Each layer has its own number for a request. Clients choose a `request_id`, which identifies nothing here; HTTP/2 has
stream ids; a process beside the coordinator has a `number` (`RemoteEngine.submit`), the engine a ticket, a loaded
version, its guests and its ensembles a `key`.
"""

from __future__ import annotations

__all__ = ["KEY_BITS", "KEY_MASK", "ticket_of"]

KEY_BITS = 40
KEY_MASK = (1 << KEY_BITS) - 1


def ticket_of(number: int, key: int) -> int:
    """The ticket of a request: *number* is that of the version's load, *key* the request's there."""
    return number << KEY_BITS | key

"""Time limits of HTTP/1.1 connections; `frontends/timeouts.py` says how they are checked."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from naiad.frontends.timeouts import sweep_seconds


class Phase(enum.Enum):
    """What a connection waits for. Each phase but `WORKING` has a time limit."""

    HEADER = "header"  # the client has begun to send the head of a request, or has sent nothing yet
    BODY = "body"  # the client has sent the head of a request, and part of its body
    IDLE = "keepalive"  # the client has its responses and may send another request
    SEND = "send"  # the client has not read all that was written
    WORKING = "working"  # the server has a request to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTimeouts:
    """Time limits in seconds; 0 for none."""

    header: float = 60  # for a whole head, from its first byte; for the first head of a connection, from the connection
    body: float = 60  # between two reads of a body
    # Between a response and the next request. The default is longer than load balancers keep idle connections (4,000 s
    # at most), so that it is not the server that closes a connection in use.
    keepalive: float = 7200
    send: float = 60  # in which a client has to read `LEAST_RATE`, or all that waits for it

    def of(self, phase: Phase) -> float:
        limit: float = 0 if phase is Phase.WORKING else getattr(self, phase.value)  # the fields have their names
        return limit

    @property
    def sweep_seconds(self) -> float:
        """How often connections are checked; 0 without any limit."""
        return sweep_seconds(self.header, self.body, self.keepalive, self.send)

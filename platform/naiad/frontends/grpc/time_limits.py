"""The time limit of gRPC: messages that stop arriving.

A sweep over all connections checks them (`frontends/timeouts.py`). The progress of a stream is its receive window,
which each DATA frame changes, and what is left of a long frame. So the request path has nothing to note.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from naiad.frontends.grpc.calls import GrpcCall
from naiad.frontends.http2.connection import Http2Connection
from naiad.frontends.status import GrpcStatus
from naiad.frontends.timeouts import ProgressWatch


class MessageTimeCheck:
    """Ends calls whose client sends nothing for too long within a message, or within a unary request."""

    def __init__(self, limit: float) -> None:
        """Allow *limit* seconds between two reads; 0 for any time."""
        self._limit = limit
        # By connection and number: what was seen of the streams that wait for their client. A stream itself would keep
        # its connection, and so this entry, for good.
        self._watches: WeakKeyDictionary[Http2Connection[Any], dict[int, ProgressWatch]] = WeakKeyDictionary()

    def check(self, connection: Http2Connection[Any], now: float) -> None:
        """Check one connection.

        Args:
            connection: The connection.
            now: The time by a clock that is the same for all calls.
        """
        limit = self._limit
        earlier = self._watches.pop(connection, {})
        if not limit or not connection.is_reading:  # what the clients have sent may wait in the socket
            return
        watches = self._watches[connection] = {}
        for stream in connection.streams:
            call = stream.handler
            if not isinstance(call, GrpcCall) or stream.is_paused or not call.is_within_message:
                continue
            watch = earlier.get(stream.number) or ProgressWatch()
            watches[stream.number] = watch
            if watch.elapsed(connection.data_left, stream.receive_window, now) >= limit:
                text = f"cannot read the request: no byte of a message arrived within {limit * 1000:g} ms"
                call.fail_with(GrpcStatus.DEADLINE_EXCEEDED, f"{text} (--grpc-message-timeout)")

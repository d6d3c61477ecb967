"""Time limits of gRPC: connections without calls, and messages that stop arriving.

A sweep over all connections checks them (`frontends/timeouts.py`). The progress of a stream is its receive window,
which each DATA frame changes, and what is left of a long frame. So the request path has nothing to note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from naiad.frontends.grpc.calls import GrpcCall
from naiad.frontends.http2.connection import Http2Connection
from naiad.frontends.http2.stream import Stream
from naiad.frontends.status import GrpcStatus
from naiad.frontends.timeouts import ProgressWatch, sweep_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcTimeLimits:
    """Time limits in seconds; 0 for none.

    Attributes:
        idle: For a connection without calls, which is drained then.
        message: Between two reads of an incomplete message, or of a unary request.
    """

    idle: float = 0
    message: float = 60

    @property
    def sweep_seconds(self) -> float:
        """How often connections are checked; 0 without any limit."""
        return sweep_seconds(self.idle, self.message)


class _Watches:
    """What was seen of one connection."""

    __slots__ = ("idle", "streams")

    def __init__(self) -> None:
        self.idle = ProgressWatch()
        self.streams: dict[Stream, ProgressWatch] = {}  # of those that wait for their client


class GrpcTimeCheck:
    """Ends connections and calls that exceed a limit."""

    def __init__(self, limits: GrpcTimeLimits) -> None:
        self._limits = limits
        self._watches: WeakKeyDictionary[Http2Connection[Any], _Watches] = WeakKeyDictionary()

    def check(self, connection: Http2Connection[Any], now: float) -> None:
        """Check one connection.

        Args:
            connection: The connection.
            now: The time by a clock that is the same for all calls.
        """
        watches = self._watches.get(connection)
        if watches is None:
            watches = self._watches[connection] = _Watches()
        is_idle = not connection.open_streams
        elapsed = watches.idle.elapsed(is_idle, connection.last_stream, now)
        if is_idle:
            watches.streams.clear()
            if 0 < self._limits.idle <= elapsed and connection.has_preface:
                connection.drain()
        elif self._limits.message:
            self._check_streams(connection, watches, now)

    def _check_streams(self, connection: Http2Connection[Any], watches: _Watches, now: float) -> None:
        if not connection.is_reading:  # what the clients have sent may wait in the socket
            watches.streams.clear()
            return
        limit = self._limits.message
        earlier, watches.streams = watches.streams, {}
        for stream in connection.streams:
            call = stream.handler
            if not isinstance(call, GrpcCall) or stream.is_paused or not call.is_within_message:
                continue
            watch = earlier.get(stream) or ProgressWatch()
            watches.streams[stream] = watch
            if watch.elapsed(connection.data_left, stream.receive_window, now) >= limit:
                text = f"cannot read the request: no byte of a message arrived within {limit * 1000:g} ms"
                call.fail_with(GrpcStatus.DEADLINE_EXCEEDED, f"{text} (--grpc-message-timeout)")

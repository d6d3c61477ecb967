"""The time limits of gRPC: messages that stop arriving, and responses that their clients do not read.

A sweep over all connections checks them (`frontends/timeouts.py`). What arrives makes progress with the receive window
of its stream, which each DATA frame changes, and what is left of a long frame. What is sent makes progress with what
leaves the stream's `SendBuffer`, and the transport. So the request path has nothing to note.

The messages of streaming calls may wait for any time: a consumer may pause. They count in the memory of requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from naiad.frontends.grpc.calls import GrpcCall
from naiad.frontends.http2.connection import Http2Connection
from naiad.frontends.http2.stream import Stream
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.status import GrpcStatus
from naiad.frontends.timeouts import ProgressWatch, ReadingWatch
from naiad.frontends.unread_responses import Reader


@dataclass(slots=True)
class _Seen:
    """What was seen of a connection."""

    receiving: dict[int, ProgressWatch] = field(default_factory=dict)  # that wait for their client, by number
    sending: dict[int, ReadingWatch] = field(default_factory=dict)  # whose windows stay closed, by number
    transport: ReadingWatch = field(default_factory=ReadingWatch)  # whether the client reads its socket


class MessageTimeCheck:
    """Ends calls whose client sends or reads too little."""

    def __init__(self, limit: float, budget: RequestBudget) -> None:
        """A check that gives clients *limit* seconds between two reads, and to read `LEAST_RATE`; 0 for any time."""
        self._limit = limit
        self._budget = budget
        # A stream or connection itself would keep the connection, and so this entry, for good.
        self._seen: WeakKeyDictionary[Http2Connection[Any], _Seen] = WeakKeyDictionary()

    def check(self, connection: Http2Connection[Any], now: float) -> None:
        earlier = self._seen.pop(connection, None)
        if not self._limit:
            return
        seen = _Seen()
        if earlier is None:
            earlier = seen
        is_paused = connection.writer.is_paused
        has_streaming = False
        for stream in connection.streams:
            call = stream.handler
            if not isinstance(call, GrpcCall):
                continue
            if not call.is_unary:
                has_streaming = True
            elif stream.unsent_data:
                watch = seen.sending[stream.number] = earlier.sending.get(stream.number) or ReadingWatch()
                self._check_reading(stream, stream.unsent_data.size, watch, now)
                continue
            # What the clients have sent may wait in a socket that is not read.
            if connection.is_reading and not stream.is_paused and call.is_within_message:
                self._check_receiving(connection, stream, call, earlier, seen, now)
        if is_paused and not has_streaming:
            seen.transport = earlier.transport
            self._check_reading(connection.writer, connection.writer.waiting, seen.transport, now)
        if seen.receiving or seen.sending or is_paused:
            self._seen[connection] = seen

    def _check_receiving(
        self, connection: Http2Connection[Any], stream: Stream, call: GrpcCall, earlier: _Seen, seen: _Seen, now: float
    ) -> None:
        watch = seen.receiving[stream.number] = earlier.receiving.get(stream.number) or ProgressWatch()
        if watch.elapsed(connection.data_left, stream.receive_window, now) >= self._limit:
            text = f"cannot read the request: no byte of a message arrived within {self._limit * 1000:g} ms"
            call.fail_with(GrpcStatus.DEADLINE_EXCEEDED, f"{text} (--client-timeout)")

    def _check_reading(self, reader: Reader, waiting: int, watch: ReadingWatch, now: float) -> None:
        if watch.is_too_slow(reader.read_count(), waiting, now, self._limit):
            self._budget.note_dropped("time")
            reader.disconnect()

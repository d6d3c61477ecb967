"""One stream: a request and its response, with the two windows of flow control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from naiad.frontends.http2.field_blocks import Fields
from naiad.frontends.http2.frames import ErrorCode, Http2StreamError
from naiad.frontends.http2.send_buffer import Buffer, SendBuffer


class StreamHandler(Protocol):
    """What handles the request of one stream. The connection calls it."""

    def on_data(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - called for each frame, keywords cost more
        """Content of the request: `data[start:end]`; *ended* with the last of it."""

    def get_buffer(self, size: int) -> memoryview | None:
        """A buffer for up to *size* bytes of content, read straight from the socket; None to use `on_data`."""

    def buffer_updated(self, size: int) -> None:
        """*size* bytes of content were read into that buffer."""

    def on_sent(self, marker: object) -> None:
        """A message with a marker was handed to the transport."""

    def on_cancel(self) -> None:
        """The client reset the stream or disconnected. Nothing else is called afterwards."""


class ResponseSender(Protocol):
    """How a handler sends its response. Calls on a stream that has ended do nothing."""

    def send_headers(self, stream: Stream, fields: Fields, *, is_constant: bool, ends: bool) -> None:
        """Send a field section: the first of a response, or its trailers, which end it."""

    def send_data(self, stream: Stream, parts: Sequence[Buffer], size: int, marker: object) -> None:
        """Send a message of *size* bytes; `on_sent` gets a marker other than None once it has left."""

    def send_trailers(self, stream: Stream, trailers: Fields, *, is_constant: bool) -> None:
        """End the response, behind all messages that flow control still holds back."""

    def send_response(
        self, stream: Stream, fields: Fields, parts: Sequence[Buffer], size: int, trailers: Fields
    ) -> None:
        """Send a whole response, all of whose fields are constant."""


class StreamController(Protocol):
    """How a handler controls its stream apart from the response."""

    longest_message: int  # bytes of the longest message that its client has sent, as handlers have noted it

    @property
    def client_address(self) -> str:
        """The address of the client; "" where it has none."""

    @property
    def unsent(self) -> int:
        """Bytes that were written to the connection and that the client's kernel has not acknowledged."""

    def reset_stream(self, stream: Stream, code: ErrorCode) -> None:
        """End the stream with RST_STREAM."""

    def cancel_stream(self, stream: Stream, code: ErrorCode) -> None:
        """End the stream with RST_STREAM, and cancel what its handler still does."""

    def pause_stream(self, stream: Stream) -> None:
        """Do not open the stream's window any more: its client can send what the window holds, then blocks."""

    def resume_stream(self, stream: Stream) -> None:
        """Open the stream's window again."""

    def defer(self, resume: Callable[[], None]) -> None:
        """Call *resume* in a later turn of the loop, within the connection's share; nothing is read until then."""


class _NoHandler:
    """Handles a stream that has no handler yet, or no longer. It discards everything."""

    def on_data(self, data: Buffer, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - see `StreamHandler`
        pass

    def get_buffer(self, size: int) -> memoryview | None:  # noqa: ARG002 - see `StreamHandler`
        return None

    def buffer_updated(self, size: int) -> None:
        pass

    def on_sent(self, marker: object) -> None:
        pass

    def on_cancel(self) -> None:
        pass


_NO_HANDLER = _NoHandler()


@dataclass(slots=True, eq=False)
class Stream:
    """The state of a stream."""

    number: int
    controller: StreamController  # its connection, for what is not part of the response
    sender: ResponseSender
    # Bytes that may be sent: negative once the peer has lowered its initial window below what was sent (6.9.2).
    send_window: int
    receive_window: int
    content_left: int = -1  # bytes of `content-length` that have not arrived; -1 without one
    handler: StreamHandler = _NO_HANDLER
    is_half_closed: bool = False  # whether the request is complete ("half-closed (remote)", section 5.1)
    is_open: bool = True  # whether a response may still be sent
    is_paused: bool = False  # whether its receive window is not opened again
    is_queued: bool = False  # whether it is in the sender's queue
    fields_cost: float = 0.0  # microseconds that decoding the request's fields took, estimated
    unsent_data: SendBuffer | None = None
    unsent_trailers: tuple[Fields, bool] | None = None  # behind them, and whether they are constant

    def __repr__(self) -> str:
        return f"<Stream #{self.number} {'open' if self.is_open else 'closed'} unsent={self.unsent}>"

    @property
    def unsent(self) -> int:
        """Bytes of memory that messages take which flow control holds back."""
        return self.unsent_data.memory if self.unsent_data is not None else 0

    def read_count(self) -> int:
        """Bytes of those held back that the client has read, up to a constant: see `Reader`.

        A client may open a window by a megabyte at once, and read that for minutes. So what the connection has not sent
        yet is subtracted, though other streams have a part in it.
        """
        return 0 if self.unsent_data is None else self.unsent_data.taken - self.controller.unsent

    def disconnect(self) -> None:
        """End the stream, whose client reads too slowly: see `Reader`. In gRPC this is RESOURCE_EXHAUSTED."""
        self.controller.cancel_stream(self, ErrorCode.ENHANCE_YOUR_CALM)

    def count_content(self, size: int, *, ended: bool) -> None:
        """Compare content with `content-length`, and note the end of the request; Http2StreamError if they differ."""
        if self.content_left >= 0:
            if size > self.content_left or (ended and size < self.content_left):
                raise Http2StreamError(self.number, ErrorCode.PROTOCOL_ERROR)
            self.content_left -= size
        if ended:
            self.is_half_closed = True

    def close(self) -> None:
        """Release everything, also the handler: the two refer to each other, a cycle for the garbage collector."""
        self.is_open = False
        if self.unsent_data is not None:
            self.unsent_data.release()
            self.unsent_data = None
        self.unsent_trailers = None
        self.handler = _NO_HANDLER

"""One client's connection: joins the parts of HTTP/2 on an asyncio transport.

| part | what it does | pure |
|---|---|---|
| `Http2FrameReader` | bytes to frames, by callbacks to the connection | yes |
| `FieldBlockDecoder` | field blocks to requests | yes |
| `ReceiveFlow`, `SendFlow` | windows both ways | yes |
| `Sender`, `FrameWriter` | responses to the socket, in turns | no: transport, `call_soon` |
| `Keepalive`, `GracefulShutdown` | pings, age, the orderly end | no: timers |
| `FloodAccount` | what frames without work cost | yes |
| `LoopTurns` | a share of the event loop for each connection | no: `call_soon` |
| `Http2Connection` | the table of streams, abuse limits, errors, how both end | no |

The path of a usual request: the loop reads the socket into a buffer that all connections of the loop share;
`buffer_updated` gives it to the `Http2FrameReader`; `on_headers` finds the request by the bytes of its field block,
makes a `Stream` and asks the application for a handler; `on_data` hands the content to it. The handler responds through
`stream.sender`, usually with one write.

Errors follow section 5.4. A stream error resets its stream, a connection error ends the connection with GOAWAY. Parts
raise them; the connection reacts, in `on_stream_error` and `buffer_updated`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from time import perf_counter
from typing import Generic, Protocol, TypeVar, cast

from naiad.core.turns import SHARE_SECONDS, LoopTurns
from naiad.frontends.http2 import flood_account, frames
from naiad.frontends.http2.field_blocks import FieldBlockDecoder, Fields
from naiad.frontends.http2.flood_account import (
    SMALL_DATA_COST,
    SMALL_DATA_SIZE,
    WINDOW_UPDATE_COST,
    Flood,
    FloodAccount,
)
from naiad.frontends.http2.flow_control import ReceiveFlow
from naiad.frontends.http2.frame_reader import Http2FrameReader
from naiad.frontends.http2.frames import MAX_STREAM, ErrorCode, Http2ConnectionError, Http2StreamError
from naiad.frontends.http2.keepalive import GracefulShutdown, Keepalive, KeepaliveSettings
from naiad.frontends.http2.limits import Http2Limits, StreamCount
from naiad.frontends.http2.request_head import InvalidFieldsError, RequestHead, check_fields, parse_request_head
from naiad.frontends.http2.sender import FrameWriter, Sender
from naiad.frontends.http2.settings import server_preface
from naiad.frontends.http2.stream import Stream, StreamHandler
from naiad.frontends.open_connections import OpenConnections
from naiad.frontends.refusals import client_address
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.unread_bytes import has_unread_bytes

logger = logging.getLogger("naiad.http2")

READ_BUFFER_SIZE = 1 << 18  # bytes of the buffer that sockets are read into
_DIRECT_READ_MIN = 1 << 15  # missing bytes of a DATA frame from which they are read straight into its handler's buffer
_READ_BETWEEN = 1 << 14  # bytes read after such a frame, if more follow: all is copied but the next one's head
_LINGER_SECONDS = 1.0  # how long the socket stays open after the last frame, see `Http2Connection._linger`
_MAX_RESET_STREAMS = 1024  # how many streams that were reset are remembered, see `Http2Connection._remember_reset`
_SETTING_SIZE = 6
# Members of an enumeration are slow to look up (Python 3.10), and these two are charged often.
_WINDOW_UPDATE, _SMALL_DATA = Flood.WINDOW_UPDATE, Flood.SMALL_DATA

_HTTP_1_TEXT = (
    b"This port speaks HTTP/2 and nothing older, as clients of gRPC do; with TLS, clients must offer h2 by ALPN. "
    b"HTTP/1.1 is spoken at another port.\n"
)
_HTTP_1_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_HTTP_1_TEXT), _HTTP_1_TEXT)
)  # To a client without HTTP/2's preface. GOAWAY may be omitted (section 3.4), and this text reaches a person.

T = TypeVar("T")


class Application(Protocol[T]):
    """What handles requests."""

    def parse_head(self, head: RequestHead) -> T:
        """What the application needs of a request's fields. Called once for requests whose field blocks are equal."""

    def handle_request(self, stream: Stream, head: T) -> StreamHandler | None:
        """Begin to handle a request; None where the response is already sent."""


class Http2Connection(asyncio.BufferedProtocol, Generic[T]):
    """One client's connection."""

    def __init__(
        self,
        application: Application[T],
        connections: OpenConnections[Http2Connection[T]],
        # Where the socket is read into. All connections of an event loop share it: `buffer_updated` takes everything
        # out before the loop reads another socket.
        read_buffer: memoryview,
        limits: Http2Limits,
        settings: KeepaliveSettings,
        turns: LoopTurns,
        stream_count: StreamCount,
        budget: RequestBudget | None = None,
    ) -> None:
        budget = budget or RequestBudget()
        loop = asyncio.get_running_loop()
        self.has_preface = False  # whether the client has sent HTTP/2's preface
        self.longest_message = 0
        self._application = application
        self._connections = connections
        self._read_buffer = read_buffer
        self._limits = limits
        self._loop = loop
        self._streams: dict[int, Stream] = {}
        self._reader = Http2FrameReader(self, limits)
        self._decoder = FieldBlockDecoder(self._parse_fields, limits)
        self._receive_flow = ReceiveFlow(limits.window, limits.stream_window)
        self.writer = FrameWriter(loop, budget)
        self._sender = Sender(self.writer, self._streams, self._on_response_sent, turns.defer, budget)
        self._keepalive = Keepalive(self, settings, loop, loop.time())
        self._shutdown = GracefulShutdown(self, settings, loop)
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._account = FloodAccount(limits, loop.time())
        self._turns = turns
        self._stream_count = stream_count
        self._cancelled: deque[StreamHandler] = deque()
        # The last stream that the client opened, and the last one that it may open.
        self.last_stream = 0
        self._max_stream = MAX_STREAM
        self._reset_streams: OrderedDict[int, None] = OrderedDict()
        # The stream of the long DATA frame that is being read, if any wants it, and whether the frame ends the request.
        self._data_stream: Stream | None = None
        self._data_ends_stream = False
        self._is_direct_read = False
        self._share_end = 0.0  # when the share of long frames in this turn of the loop is used up; 0 before the first
        self._is_between_frames = False  # a long one has just been read, and its request has not ended
        # Two reasons to read nothing from the socket: the client itself does not read, or it has sent more than fits
        # into a turn of the loop.
        self._is_unread = False
        self._is_deferred = False
        self._deferred_calls: deque[Callable[[], None]] = deque()
        self._is_reading_paused = False
        # Whether the last read was more than fits into a turn: the next one waits for the turns of such connections.
        self._is_busy = False
        # Nothing is read or written any more, but the socket may still be open.
        self._is_over = False

    def __repr__(self) -> str:
        return f"<Http2Connection streams={len(self._streams)} last=#{self.last_stream}>"

    # -- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected. Its preface comes first: ours would confuse a client of HTTP/1.1."""
        # A cast, because transports of uvloop do not subclass `asyncio.Transport`.
        self.writer.open(cast("asyncio.Transport", transport))
        refusal = self._connections.add(self, cast("asyncio.Transport", transport))
        if refusal:
            self._write(server_preface(self._limits))
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, refusal)
            return
        self._handshake_timer = self._loop.call_later(self._limits.handshake_seconds, self.abort)
        self._shutdown.start()
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None and ssl_object.selected_alpn_protocol() != "h2":
            self._reader.stop()
            self.on_other_protocol()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.writer.close()
        self._is_over = True
        self._reader.stop()
        self._connections.discard(self)
        self._cancel_handshake_timer()
        self._keepalive.stop()
        self._shutdown.stop()
        self._cancel_streams()
        # What is left refers to itself and is freed late.
        self._read_buffer = memoryview(b"")

    def eof_received(self) -> bool:
        """The client closed its side. It cannot acknowledge anything any more, so its calls are cancelled."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the socket's next bytes go: into the message that a long DATA frame carries, where that is possible."""
        data_left = self._reader.data_left
        if data_left >= _DIRECT_READ_MIN and not self._is_deferred:
            stream = self._data_stream
            if stream is not None and stream.is_open:
                buffer = stream.handler.get_buffer(data_left)
                if buffer is not None:
                    self._is_direct_read = True
                    return buffer
        if self._is_between_frames:
            self._is_between_frames = False
            return self._read_buffer[:_READ_BETWEEN]
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over:
            return
        self._keepalive.last_read = self._loop.time()
        reader = self._reader
        is_share_used = False
        try:
            if self._is_direct_read:
                self._is_direct_read = False
                self._on_direct_read(nbytes)
                is_share_used = self._is_share_used()
            elif self._is_busy:
                reader.keep(self._read_buffer[:nbytes])
            else:
                reader.feed(self._read_buffer[:nbytes])
        except Exception as error:  # noqa: BLE001 - any error ends the connection
            self._fail_with(error)
        if reader.has_rest or nbytes == READ_BUFFER_SIZE or is_share_used:
            self._defer()
        if self.writer.is_paused:
            self._pause_reading_if_unsent()

    def _is_share_used(self) -> bool:
        """Whether reading long frames has taken the connection's share of this turn of the loop.

        libuv reads a socket up to 32 times in a turn while its reads fill their buffers. Of a message of 200 MB that
        was 9 MiB, whose memory is touched for the first time: 13 ms.
        """
        now = perf_counter()
        if not self._share_end:
            self._share_end = now + SHARE_SECONDS
            self._loop.call_soon(self._end_share)  # which the loop calls when it has read all sockets
        return now >= self._share_end

    def _end_share(self) -> None:
        self._share_end = 0.0

    def _fail_with(self, error: Exception) -> None:
        if isinstance(error, Http2ConnectionError):
            self.fail(error.code, error.text)
        else:
            logger.error("cannot continue %r: unexpected error", self, exc_info=error)
            self.fail(ErrorCode.INTERNAL_ERROR, "internal error")

    # -- turns of the loop --------------------------------------------------------------------------------------

    def defer(self, resume: Callable[[], None]) -> None:
        self._deferred_calls.append(resume)
        self._defer()

    def _defer(self) -> None:
        """Read nothing more from the socket, and continue in a later turn of the loop.

        Also after a read that filled the buffer: libuv would read such a socket again and again before any other.
        """
        if self._reader.has_rest and not self._is_busy:
            self._is_busy = True
            self._account.hold(self._loop.time())
        if not self._is_deferred:
            self._is_deferred = True
            self._update_reading()
            self._turns.defer(self._resume)

    def _resume(self) -> None:
        calls, reader = self._deferred_calls, self._reader
        deadline = perf_counter() + SHARE_SECONDS
        try:
            while calls and perf_counter() < deadline:
                calls.popleft()()
            if reader.has_rest and not calls:
                reader.resume()
        except Exception as error:  # noqa: BLE001 - any error ends the connection
            self._fail_with(error)
        if self.writer.is_paused:
            self._pause_reading_if_unsent()
        if reader.has_rest or calls:
            self._turns.defer(self._resume)
            return
        self._is_deferred = False
        if self._is_busy:
            self._is_busy = False
            self._account.release(self._loop.time())
        self._update_reading()

    def _update_reading(self) -> None:
        is_paused = self._is_deferred or self._is_unread
        transport = self.writer.transport
        if transport is None or is_paused is self._is_reading_paused or transport.is_closing():
            return
        self._is_reading_paused = is_paused
        if is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()
        self._sender.send_queued()
        if self._is_unread:
            self._is_unread = False
            self._update_reading()

    def _pause_reading_if_unsent(self) -> None:
        """Stop reading from a client that does not read: responses without DATA would pile up without bound."""
        transport = self.writer.transport
        if transport is not None and transport.get_write_buffer_size() > self._limits.unsent:
            self._is_unread = True
            self._update_reading()

    # -- the preface (section 3.4) ------------------------------------------------------------------------------

    def on_preface(self) -> None:
        self.has_preface = True
        self._cancel_handshake_timer()
        self._write(server_preface(self._limits))
        self._keepalive.start()
        self._shutdown.on_preface()

    def on_other_protocol(self) -> None:
        """The client uses another protocol, most likely HTTP/1.1: respond in that, with what this port serves."""
        self._write(_HTTP_1_RESPONSE)
        self._linger(is_orderly=False)

    def _cancel_handshake_timer(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    # -- requests (section 8.1) ---------------------------------------------------------------------------------

    def on_headers(self, number: int, block: bytes, ended: bool) -> None:  # noqa: FBT001 - see `FrameHandler`
        if number <= self.last_stream:  # identifiers only grow (section 5.1.1)
            self._on_trailers(number, block, ended=ended)
            return
        self.last_stream = number
        # Decoded even if the stream is then refused: the block may change the table that later blocks refer to.
        decoder = self._decoder
        try:
            request, content_length = decoder.read(block)
        except InvalidFieldsError:
            self._charge(Flood.FIELDS, decoder.take_cost())
            raise Http2StreamError(number, ErrorCode.PROTOCOL_ERROR) from None
        cost = 0.0
        if decoder.cost:
            cost = decoder.take_cost()
            self._charge(Flood.FIELDS, cost)
        own, count = len(self._streams), self._stream_count
        if own >= self._limits.streams or number > self._max_stream or not count.has_room(own, len(self._connections)):
            raise Http2StreamError(number, ErrorCode.REFUSED_STREAM)
        sender = self._sender
        stream = Stream(number, self, sender, sender.flow.initial_window, self._limits.stream_window, content_length)
        if cost:
            stream.fields_cost = cost
        self._streams[number] = stream
        count.open += 1
        if ended:
            stream.count_content(0, ended=True)
        handler = self._application.handle_request(stream, request)
        if handler is None or not stream.is_open:
            return
        stream.handler = handler
        if ended:
            handler.on_data(b"", 0, 0, True)

    def _on_trailers(self, number: int, block: bytes, *, ended: bool) -> None:
        fields = self._decoder.decode(block)  # first, as in `on_headers`: the block may change the table
        self._charge(Flood.FIELDS, self._decoder.take_cost())
        stream = self._streams.get(number)
        if stream is None:
            if number in self._reset_streams:
                return
            raise Http2ConnectionError(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {number}, which has ended")
        if stream.is_half_closed:
            raise Http2StreamError(number, ErrorCode.STREAM_CLOSED)
        try:
            check_fields(fields)
        except InvalidFieldsError:
            ended = False
        if not ended:  # trailers must end the request (section 8.1)
            raise Http2StreamError(number, ErrorCode.PROTOCOL_ERROR)
        stream.count_content(0, ended=True)
        stream.handler.on_data(b"", 0, 0, True)

    def _parse_fields(self, fields: Fields) -> tuple[T, int]:
        head = parse_request_head(fields)
        return self._application.parse_head(head), head.content_length

    # -- content (section 6.1) ----------------------------------------------------------------------------------

    def on_data(self, number: int, size: int, data: bytes, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - see `FrameHandler`
        stream = self._count_data(number, size)
        if end - start < SMALL_DATA_SIZE and not ended:
            self._charge(_SMALL_DATA, SMALL_DATA_COST)
        if stream is not None:
            stream.count_content(end - start, ended=ended)
            stream.handler.on_data(data, start, end, ended)

    def on_data_begin(self, number: int, size: int, ended: bool) -> None:  # noqa: FBT001 - see `FrameHandler`
        """A long DATA frame. It is counted at once; its content follows in chunks."""
        self._data_stream = None
        self._data_ends_stream = ended
        stream = self._count_data(number, size)
        if stream is not None:
            stream.count_content(size, ended=ended)
            self._data_stream = stream

    def on_data_chunk(self, data: bytes, start: int, end: int, is_last: bool) -> None:  # noqa: FBT001 - see `FrameHandler`
        stream = self._data_stream
        if is_last:
            self._data_stream = None
        if stream is not None and stream.is_open:
            stream.handler.on_data(data, start, end, is_last and self._data_ends_stream)

    def _on_direct_read(self, size: int) -> None:
        """Content of a long DATA frame was read into its handler's buffer."""
        stream = self._data_stream
        if stream is not None and stream.is_open:
            stream.handler.buffer_updated(size)
        self._reader.on_direct_read(size)
        self._is_between_frames = not self._reader.data_left and stream is not None and not stream.is_half_closed

    def _count_data(self, number: int, size: int) -> Stream | None:
        """Apply flow control to DATA; return its stream, None where that was reset and the data is discarded."""
        increment = self._receive_flow.consume(size)
        if increment:
            self._write(frames.window_update(0, increment))
        stream = self._streams.get(number)
        if stream is None:
            self._check_opened(number, "DATA")
            if number not in self._reset_streams:
                raise Http2StreamError(number, ErrorCode.STREAM_CLOSED)
            return None
        if stream.is_half_closed:
            raise Http2StreamError(number, ErrorCode.STREAM_CLOSED)
        increment = self._receive_flow.consume_on_stream(stream, size)
        if increment:
            self._write(frames.window_update(number, increment))
        return stream

    @property
    def client_address(self) -> str:
        return client_address(self.writer.transport)

    def pause_stream(self, stream: Stream) -> None:
        stream.is_paused = True

    def resume_stream(self, stream: Stream) -> None:
        stream.is_paused = False
        if stream.is_open:
            increment = self._receive_flow.reopen(stream)
            if increment:
                self._write(frames.window_update(stream.number, increment))

    # -- control frames -----------------------------------------------------------------------------------------

    def on_window_update(self, number: int, increment: int) -> None:
        sender = self._sender
        fragments = sender.fragments
        if not number:
            sender.on_window_update(increment)
        else:
            stream = self._streams.get(number)
            if stream is None:
                self._check_opened(number, "WINDOW_UPDATE")  # on an ended stream it is ignored (section 5.1)
            else:
                sender.on_stream_window_update(stream, increment)
        # Some clients send one or two for each response, so this is spelled out rather than a call of `_charge`.
        cost = WINDOW_UPDATE_COST
        if sender.fragments != fragments:
            cost += (sender.fragments - fragments) * flood_account.FRAGMENT_COST
        if not self._account.charge(_WINDOW_UPDATE, cost):
            self._settle()

    def on_reset(self, number: int) -> None:
        self._check_opened(number, "RST_STREAM")
        stream = self._streams.pop(number, None)
        if stream is None:
            self._charge(Flood.RESET, flood_account.RESET_COST)
            return
        self._stream_count.open -= 1
        handler = stream.handler
        is_complete = stream.is_half_closed
        stream.close()
        handler.on_cancel()
        cost = flood_account.COMPLETE_CANCEL_COST if is_complete else flood_account.CANCEL_COST
        self._charge(Flood.RESET, cost)
        self._close_if_idle()

    def on_settings(self, payload: bytes) -> None:
        cost = flood_account.SETTINGS_COST + len(payload) // _SETTING_SIZE * flood_account.SETTING_COST
        if self._sender.apply_settings(payload):
            cost += len(self._streams) * flood_account.WINDOW_CHANGE_COST
        self._charge(Flood.SETTINGS, cost)
        self._write(frames.SETTINGS_ACK)
        self._sender.send_queued()  # behind the acknowledgement, see `Sender.apply_settings`

    def on_ping(self, payload: bytes, *, is_ack: bool) -> None:
        self._charge(Flood.PING, flood_account.PING_COST)
        if is_ack:
            self._keepalive.on_ping_ack(payload)
            self._shutdown.on_ping_ack(payload)
            return
        self._keepalive.on_ping()
        self._write(frames.ping(payload, is_ack=True))

    def on_ignored_frame(self) -> None:
        self._charge(Flood.IGNORED, flood_account.IGNORED_COST)

    def _check_opened(self, number: int, name: str) -> None:
        """Raise a connection error for a stream that the client has not opened ("idle", section 5.1)."""
        if number > self.last_stream or not number & 1:
            text = f"{name} on stream {number}, which was never opened"
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, text)

    def _charge(self, flood: Flood, cost: float) -> None:
        if not self._account.charge(flood, cost):
            self._settle()

    def _settle(self) -> None:
        self._account.settle(self._loop.time(), self._sender.count - self._sender.fragments)

    # -- the end of streams -------------------------------------------------------------------------------------

    def on_stream_error(self, error: Http2StreamError) -> None:
        stream = self._streams.get(error.stream)
        cost = flood_account.STREAM_ERROR_COST
        if stream is not None:
            if stream.is_half_closed:
                cost += flood_account.COMPLETE_CANCEL_COST
            self.cancel_stream(stream, error.code)
        else:
            self._write(frames.reset(error.stream, error.code))
            self._remember_reset(error.stream)
        self._charge(Flood.REFUSED if error.code == ErrorCode.REFUSED_STREAM else Flood.STREAM_ERROR, cost)

    def reset_stream(self, stream: Stream, code: ErrorCode) -> None:
        self.writer.write(frames.reset(stream.number, code))
        self._remember_reset(stream.number)
        self._remove_stream(stream)

    def cancel_stream(self, stream: Stream, code: ErrorCode) -> None:
        handler = stream.handler
        self.reset_stream(stream, code)
        handler.on_cancel()

    def _on_response_sent(self, stream: Stream) -> None:
        """End a stream whose response is complete, by RST_STREAM with NO_ERROR if its request is not (section 8.1)."""
        if stream.fields_cost:
            self._account.refund(stream.fields_cost)
        if stream.is_half_closed:
            self._remove_stream(stream)
        else:
            self.reset_stream(stream, ErrorCode.NO_ERROR)

    def _remove_stream(self, stream: Stream) -> None:
        stream.close()
        if self._streams.pop(stream.number, None) is not None:
            self._stream_count.open -= 1
        if self._shutdown.has_begun:
            self._close_if_idle()

    def _remember_reset(self, number: int) -> None:
        """Remember a stream that we reset: frames that the client sent before it knew must be ignored (section 5.1)."""
        self._reset_streams[number] = None
        if len(self._reset_streams) > _MAX_RESET_STREAMS:
            self._reset_streams.popitem(last=False)

    def _cancel_streams(self) -> None:
        self._stream_count.open -= len(self._streams)
        for stream in self._streams.values():
            self._cancelled.append(stream.handler)
            stream.close()
        self._streams.clear()
        self._deferred_calls.clear()
        self._cancel_more()

    def _cancel_more(self) -> None:
        """Cancel what a connection that ended has left, in turns: it may be thousands of requests."""
        deadline = perf_counter() + SHARE_SECONDS
        while self._cancelled:
            self._cancelled.popleft().on_cancel()
            if self._cancelled and perf_counter() >= deadline:
                self._turns.defer(self._cancel_more)
                return

    # -- the end of the connection ------------------------------------------------------------------------------

    @property
    def open_streams(self) -> Collection[int]:
        return self._streams.keys()

    @property
    def streams(self) -> Collection[Stream]:
        """The open streams; a copy, since handlers may end them."""
        return tuple(self._streams.values())

    @property
    def unsent(self) -> int:
        return self.writer.unsent

    @property
    def data_left(self) -> int:
        """Bytes that are still to come of a long DATA frame, on whichever stream; 0 outside of one."""
        return self._reader.data_left

    @property
    def is_reading(self) -> bool:
        """Whether the socket is read. If not, the server has a reason; the client may have sent more."""
        return not self._is_reading_paused

    @property
    def has_unread_bytes(self) -> bool:
        return has_unread_bytes(self.writer.transport)

    @property
    def sent_count(self) -> int:
        return self._sender.count

    def ping(self, payload: bytes) -> None:
        self._write(frames.ping(payload))

    def drain(self) -> None:
        """Accept no more streams, and close when those that are open have ended."""
        self._shutdown.begin()

    @property
    def is_drained(self) -> bool:
        """Whether the client knows the last request that is handled here."""
        return self._shutdown.is_announced or self._is_over

    def announce_shutdown(self, *, is_final: bool) -> None:
        if is_final:
            self._max_stream = self.last_stream
        self._write(frames.go_away(self._max_stream, ErrorCode.NO_ERROR))
        self._close_if_idle()

    def fail(self, code: ErrorCode, text: str) -> None:
        if self._is_over:
            return
        # The last stream in GOAWAY must not grow from one frame to the next (section 6.8).
        self._write(frames.go_away(min(self.last_stream, self._max_stream), code, text))
        self._linger(is_orderly=False)
        self._cancel_streams()

    def abort(self) -> None:
        self.writer.disconnect()

    def _close_if_idle(self) -> None:
        if self._max_stream < MAX_STREAM and not self._streams and not self._is_over:
            self._linger(is_orderly=True)

    def _linger(self, *, is_orderly: bool) -> None:
        """Close our side now and the socket a second later.

        Closing a socket that still has unread bytes makes the kernel send RST, upon which the client's kernel discards
        what the client has not read: our GOAWAY with its reason. In an orderly end, data that is still in the
        transport's buffer after that second is sent before the socket closes.
        """
        self._is_over = True
        self._reader.stop()
        self.writer.flush()
        transport = self.writer.transport
        if transport is not None:
            if transport.can_write_eof():
                transport.write_eof()
            self._loop.call_later(_LINGER_SECONDS, transport.close if is_orderly else transport.abort)

    def _write(self, data: bytes) -> None:
        """Write control frames, unless GOAWAY was the last frame."""
        if not self._is_over:
            self.writer.write(data)

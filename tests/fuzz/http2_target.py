"""gRPC's connections without sockets: frames in, frames out, and checks of both."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import hpack
from fuzz import grpc_target
from fuzz.engine import CheckedEngine, ErrorLog

from naiad.core.turns import LoopTurns
from naiad.frontends.grpc.messages import PREFIX
from naiad.frontends.http2 import frames
from naiad.frontends.http2.connection import READ_BUFFER_SIZE, Http2Connection
from naiad.frontends.http2.frames import ErrorCode, Setting
from naiad.frontends.http2.keepalive import KeepaliveSettings
from naiad.frontends.http2.limits import Http2Limits, StreamCount
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.open_connections import OpenConnections

_MAX_TURNS = 50
_LIMITS = Http2Limits(frame_size=1 << 16, stream_window=1 << 17, window=1 << 18, handshake_seconds=1e6)


class Http2Target:
    """Sends frames, and checks the responses.

    Attributes:
        outcomes: How often connections and streams ended in each way.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._errors.texts.append(repr(context)))
        self._errors = ErrorLog()
        logging.getLogger("naiad").addHandler(self._errors)
        self._turns = LoopTurns(self._loop)
        self._stream_count = StreamCount(_LIMITS)
        self._inbox = memoryview(bytearray(READ_BUFFER_SIZE))
        self._engine = CheckedEngine()
        self._frontend = GrpcFrontend(self._engine, address="", port=0)
        self._application = self._frontend.application(self._loop)

    def close(self) -> None:
        """Remove the log handler and close the loop."""
        logging.getLogger("naiad").removeHandler(self._errors)
        self._loop.close()

    def try_frames(self, sent: Sequence[bytes], cuts: Sequence[int]) -> None:
        """Send frames, cut into pieces. Raises AssertionError for an invalid response."""
        data = frames.PREFACE + frames.settings(()) + b"".join(sent)
        self._loop.run_until_complete(asyncio.wait_for(self._exchange(data, cuts), 20))

    async def _exchange(self, data: bytes, cuts: Sequence[int]) -> None:
        self._errors.texts.clear()
        connections: OpenConnections[Http2Connection[Any]] = OpenConnections()
        lifetimes = KeepaliveSettings(max_ping_strikes=0)
        connection = Http2Connection(
            self._application, connections, self._inbox, _LIMITS, lifetimes, self._turns, self._stream_count
        )
        transport = _Transport()
        connection.connection_made(transport)
        bounds = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
        for start, end in itertools.pairwise(bounds):
            await self._feed(connection, transport, data[start:end])
            await asyncio.sleep(0)
        for _ in range(_MAX_TURNS):
            self._engine.release()
            await asyncio.sleep(0)
        transport.is_closed = True
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert not self._errors.texts, self._errors.texts[0]
        assert not connections, "a closed connection is still listed"
        assert not connection.open_streams, "a closed connection has streams"
        assert not self._stream_count.open, "streams of a closed connection are counted"
        assert not self._frontend._gate._running, "an inference is still counted"
        self._check_written(bytes(transport.written))

    @staticmethod
    async def _feed(connection: Http2Connection[Any], transport: _Transport, data: bytes) -> None:
        while data and not transport.is_closed:
            if transport.is_paused:
                await asyncio.sleep(0)
                continue
            room = connection.get_buffer(-1)
            size = min(len(room), len(data))
            assert size, "the connection offers an empty buffer"
            room[:size] = data[:size]
            room = None  # as uvloop, which releases the buffer before the call
            connection.buffer_updated(size)
            data = data[size:]

    def _check_written(self, written: bytes) -> None:
        decoder, is_over = hpack.Decoder(), False
        while written:
            assert not is_over, "a frame follows GOAWAY"
            high, low, kind, flags, number = frames.HEAD.unpack_from(written)
            end = frames.HEAD_SIZE + (high << 8 | low)
            assert end <= len(written), "a frame is shorter than its head announces"
            payload, written = written[frames.HEAD_SIZE : end], written[end:]
            if kind == frames.HEADERS:
                fields = dict(decoder.decode(payload))
                if flags & frames.END_STREAM:
                    self.outcomes[f"grpc-status {fields['grpc-status']}"] += 1
            elif kind == frames.RST_STREAM:
                assert number
                self.outcomes[ErrorCode(int.from_bytes(payload, "big")).name] += 1
            elif kind == frames.GOAWAY:
                code = ErrorCode(int.from_bytes(payload[4:8], "big"))
                assert code is not ErrorCode.INTERNAL_ERROR, payload
                self.outcomes[f"connection: {code.name}"] += 1
                is_over = True


class _Transport(asyncio.Transport):
    """A transport that records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def write(self, data: object) -> None:
        assert not self.is_closed, "written to after the end"
        self.written += memoryview(data).cast("B")

    def writelines(self, parts: object) -> None:
        for part in parts:
            self.write(part)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: object = None, low: object = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    abort = close


OF_CONNECTION = (
    frames.ping(b"12345678"),
    frames.ping(b"12345678", is_ack=True),
    frames.SETTINGS_ACK,
    frames.settings([(Setting.INITIAL_WINDOW_SIZE, 50), (Setting.HEADER_TABLE_SIZE, 0)]),
    frames.settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 20), (Setting.MAX_FRAME_SIZE, 1 << 15)]),
    frames.window_update(0, 1000),
    frames.go_away(0, ErrorCode.NO_ERROR),
    frames.frame(0x42, 0, 3, b"unknown"),
)
"""Valid frames of the connection."""

METHODS = ("ModelInfer", "ModelInfer", "ModelStreamInfer", "ServerLive")


def head_of(number: int, method: str, *, is_cut: bool) -> bytes:
    """A valid beginning of a request. It does not change the table of fields, so that it may be left out."""
    block = hpack.Encoder().encode(_fields(method))
    if not is_cut:
        return frames.headers(number, block, ends=False)
    first = frames.frame(frames.HEADERS, 0, number, block[:9])
    return first + frames.frame(frames.CONTINUATION, frames.END_HEADERS, number, block[9:])


def contents_of(number: int) -> list[bytes]:
    """Valid frames for an open stream."""
    found = [
        frames.frame(frames.DATA, frames.END_STREAM, number, PREFIX.pack(0, 0)),
        frames.frame(frames.DATA, 0, number, PREFIX.pack(0, 100_000) + bytes(40_000)),
        frames.window_update(number, 10),
        frames.reset(number, ErrorCode.CANCEL),
        frames.frame(frames.PRIORITY, 0, number, bytes(5)),
    ]
    for _, data in grpc_target.samples()[:6]:
        message = PREFIX.pack(0, len(data)) + data
        found += [
            frames.frame(frames.DATA, frames.END_STREAM, number, message),
            frames.frame(frames.DATA, 0, number, message),
            frames.frame(frames.DATA, frames.PADDED, number, b"\x04" + message[:9] + bytes(4))
            + frames.frame(frames.DATA, frames.END_STREAM, number, message[9:]),
        ]
    return found


def _fields(method: str) -> list[tuple[str, str, bool]]:
    path = f"/{grpc_target.SERVICE}/{method}"
    plain = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    return [(*field, True) for field in plain]

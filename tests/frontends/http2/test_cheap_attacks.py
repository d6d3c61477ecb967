"""Attacks that cost the client little: the server bounds the time and memory that they cost it."""

from __future__ import annotations

import select
import socket
import time

import hpack
import pytest
from frontends.http2.peer import HOLD, REQUEST

from naiad.frontends.http2 import frames
from naiad.frontends.http2.field_blocks import FieldBlockDecoder
from naiad.frontends.http2.frames import ErrorCode, Http2ConnectionError, Setting
from naiad.frontends.http2.limits import Http2Limits

CALM = ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("first", [b"\x0f", b"\x00\x7f", b"\x00\x00\x7f", b"\xff"])
def test_an_integer_without_end_is_not_added_up(first):
    """Each byte adds seven bits: adding up 64 KB took a quarter of a second for each block."""
    started = time.thread_time()  # CPU time of this thread, so that a busy machine does not fail the test
    with pytest.raises(Http2ConnectionError, match="an integer that is too long"):
        FieldBlockDecoder(lambda fields: fields, Http2Limits()).read(first + b"\xff" * (1 << 16))
    assert time.thread_time() - started < 0.05


@pytest.mark.parametrize("size", [b"\x20", b"\x3e", b"\x3f\x80\x01", b"\x3f\xe1\x1f"])
def test_a_block_may_set_the_table_size_twice_at_most(peer, size):
    """hpack takes half a second for a block of nothing but table sizes."""
    peer.send(frames.frame(frames.HEADERS, 5, 1, size * 2 + peer.block([*REQUEST[:4]])))
    assert peer.response(1)[2] == {"x-done": "yes"}
    peer.send(frames.frame(frames.HEADERS, 5, 3, size * 3 + peer.block([*REQUEST[:4]])))
    assert peer.go_away()[1:] == (ErrorCode.COMPRESSION_ERROR, "a field block with more than two table sizes")


@pytest.mark.parametrize("sent", [1.0, 0.1])
def test_long_settings_are_rejected_by_their_head(peer, sent):
    """Their rest is not even received."""
    settings = frames.settings([(Setting.MAX_HEADER_LIST_SIZE, 1)] * 1000)
    peer.send(settings[: int(len(settings) * sent)])
    assert peer.go_away()[1:] == (CALM, "SETTINGS of 6000 bytes")


def test_long_headers_are_rejected_by_their_head(peer):
    peer.send(frames.head(frames.HEADERS, frames.END_HEADERS, 1, 1 << 20))
    assert peer.go_away()[1:] == (CALM, "a field block of 1048576 bytes is too long")


def test_debug_data_of_goaway_fits_into_a_frame_of_any_client(peer):
    """Error texts of hpack repeat the bytes that it cannot decode."""
    peer.send(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x00\x7f" + b"\xff" * 20_000))
    away = peer.go_away()
    assert away.code == ErrorCode.COMPRESSION_ERROR
    assert "too long" in away.text
    assert len(away.text) < 1000


def test_a_content_length_of_many_digits_ends_its_stream_alone(peer):
    """Python converts no number of more than 4,300 digits."""
    peer.request(1, fields=(*REQUEST, ("content-length", "9" * 5000)))
    assert peer.reset() == (1, ErrorCode.PROTOCOL_ERROR)
    assert peer.is_alive()


def test_settings_that_move_many_windows_count_for_many(serve, connect):
    """Each such frame visits all open streams."""
    peer = connect(serve(Http2Limits(overhead_seconds=0.003, overhead_share=0)))
    encoder = hpack.Encoder()
    blocks = [encoder.encode(HOLD), encoder.encode(HOLD)]
    peer.send(*[frames.headers(number, blocks[number > 1], ends=False) for number in range(1, 10_001, 2)])
    assert peer.is_alive()
    sent = [frames.settings([(Setting.INITIAL_WINDOW_SIZE, size)]) for size in (1, 2, 3, 4)]
    peer.send(*sent)
    assert "too many SETTINGS frames: they cost 0.00 s" in peer.calmed()


@pytest.mark.parametrize("kind", [0x77, frames.DATA])
def test_a_long_frame_in_small_pieces_is_not_copied_with_each_piece(server, connect, kind):
    """The cost of a piece does not depend on how much of the frame has arrived."""
    peer = connect(server)
    server.loop.until(lambda: server.connections)
    (connection,) = server.connections
    assert peer.is_alive()

    def drip() -> float:
        size, piece = 1 << 20, 500
        started = time.thread_time()
        give(connection, frames.head(kind, frames.PADDED if kind == frames.DATA else 0, 1, size))
        for _ in range(2000):
            give(connection, bytes(piece))
        return time.thread_time() - started

    peer.request(1, fields=HOLD)
    assert peer.is_alive()
    assert server.loop.call(drip) < 0.1
    assert len(connection._reader._partial) == 2000 * 500 + frames.HEAD_SIZE


def give(connection, data):
    room = connection.get_buffer(-1)
    room[: len(data)] = data
    connection.buffer_updated(len(data))


def test_reading_pauses_while_the_client_does_not_read(serve, connect):
    """Responses without DATA need no window. They would pile up in the transport without bound."""
    server = serve(Http2Limits(unsent=100_000, streams=1))
    peer = connect(server)
    peer.request(1, fields=HOLD)
    assert peer.is_alive()
    (connection,) = server.connections
    # Otherwise the kernel buffers some megabytes of responses first.
    connection.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
    peer.request(3)  # from now on equal fields have equal blocks
    block = peer.block()
    peer.socket.setblocking(False)
    number, unsent = 5, b""
    while (is_taken := select.select([], [peer.socket], [], 0.2)[1]) or not connection._is_reading_paused:
        if not unsent:
            unsent = b"".join([frames.headers(each, block, ends=True) for each in range(number, number + 2000, 2)])
            number += 2000
        if is_taken:
            unsent = unsent[peer.socket.send(unsent) :]

    assert 0 < server.loop.call(connection.writer.transport.get_write_buffer_size) < 1_000_000
    while connection._is_reading_paused:
        assert peer.socket.recv(1 << 20) if select.select([peer.socket], [], [], 0.2)[0] else True


@pytest.mark.parametrize("kind", [frames.PING, frames.SETTINGS])
def test_unexpected_acknowledgements_are_counted(serve, connect, kind):
    peer = connect(serve(Http2Limits(overhead_seconds=20e-6, overhead_share=0)))
    peer.send(frames.frame(kind, frames.ACK, 0, bytes(8) if kind == frames.PING else b"") * 40)
    assert peer.go_away().code == CALM

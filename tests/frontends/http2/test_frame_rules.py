"""Violations of the protocol end a stream or the connection, with the error code that RFC 9113 requires."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket

import pytest
from frontends.http2.peer import HOLD, REQUEST, to

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import ErrorCode, Setting

Code = ErrorCode


def raw(kind, flags=0, stream=0, payload=b""):
    return frames.frame(kind, flags, stream, payload)


def setting(key, value):
    return frames.settings([(key, value)])


def opened(peer, number=1, **options):
    peer.request(number, **options)
    return peer


OF_CONNECTION = {
    "DATA on stream 0": (raw(frames.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "DATA on a stream that was never open": (raw(frames.DATA, 0, 9, b"x"), Code.PROTOCOL_ERROR),
    "HEADERS on stream 0": (raw(frames.HEADERS, 4, 0, b"\x82"), Code.PROTOCOL_ERROR),
    "HEADERS on a stream of the server's": (raw(frames.HEADERS, 4, 2, b"\x82"), Code.PROTOCOL_ERROR),
    "HEADERS with more padding than content": (raw(frames.HEADERS, 0xC, 3, b"\x09\x82"), Code.PROTOCOL_ERROR),
    "HEADERS without the length of its padding": (raw(frames.HEADERS, 0xC, 3), Code.FRAME_SIZE_ERROR),
    "HEADERS without its priority": (raw(frames.HEADERS, 0x24, 3, bytes(4)), Code.FRAME_SIZE_ERROR),
    "HEADERS that HPACK cannot decode": (raw(frames.HEADERS, 4, 3, b"\xff" * 7), Code.COMPRESSION_ERROR),
    "an index of no field": (raw(frames.HEADERS, 4, 3, b"\x80"), Code.COMPRESSION_ERROR),
    "a table larger than allowed": (raw(frames.HEADERS, 4, 3, b"\x3f\xe2\x1f"), Code.COMPRESSION_ERROR),
    "CONTINUATION out of place": (raw(frames.CONTINUATION, 4, 1), Code.PROTOCOL_ERROR),
    "another frame within a block": (raw(frames.HEADERS, 0, 3, b"\x82") + frames.ping(bytes(8)), Code.PROTOCOL_ERROR),
    "CONTINUATION of another stream": (
        raw(frames.HEADERS, 0, 3, b"\x82") + raw(frames.CONTINUATION, 4, 5, b"\x82"),
        Code.PROTOCOL_ERROR,
    ),
    "RST_STREAM on stream 0": (raw(frames.RST_STREAM, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
    "RST_STREAM on a stream that was never open": (raw(frames.RST_STREAM, 0, 9, bytes(4)), Code.PROTOCOL_ERROR),
    "RST_STREAM of another size": (raw(frames.RST_STREAM, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
    "PRIORITY on stream 0": (raw(frames.PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
    "PRIORITY of another size": (raw(frames.PRIORITY, 0, 9, bytes(4)), Code.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (raw(frames.SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
    "SETTINGS of another size": (raw(frames.SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
    "an acknowledgement with settings": (raw(frames.SETTINGS, 1, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
    "ENABLE_PUSH of 2": (setting(Setting.ENABLE_PUSH, 2), Code.PROTOCOL_ERROR),
    "a first window beyond 31 bits": (setting(Setting.INITIAL_WINDOW_SIZE, 1 << 31), Code.FLOW_CONTROL_ERROR),
    "frames shorter than the least": (setting(Setting.MAX_FRAME_SIZE, 16383), Code.PROTOCOL_ERROR),
    "frames longer than 24 bits": (setting(Setting.MAX_FRAME_SIZE, 1 << 24), Code.PROTOCOL_ERROR),
    "PUSH_PROMISE": (raw(frames.PUSH_PROMISE, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "PING on a stream": (raw(frames.PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "PING of another size": (raw(frames.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "GOAWAY of less than its size": (raw(frames.GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (raw(frames.GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE of another size": (raw(frames.WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE with an increment of 0": (frames.window_update(0, 0), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond 31 bits": (frames.window_update(0, frames.MAX_WINDOW), Code.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on a stream that was never open": (frames.window_update(9, 1), Code.PROTOCOL_ERROR),
    "a frame that is too long": (frames.head(frames.DATA, 0, 1, (1 << 20) + 1), Code.FRAME_SIZE_ERROR),
    "padding that is longer than DATA": (raw(frames.DATA, frames.PADDED, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", OF_CONNECTION)
def test_a_connection_error_has_a_code_and_debug_data(peer, server, name):
    sent, code = OF_CONNECTION[name]
    opened(peer, fields=HOLD[:4])
    peer.send(sent)
    away = peer.go_away()
    assert away.code == code
    assert away.text
    assert peer.is_closed()
    server.loop.until(lambda: all(handler.is_cancelled for handler in server.handlers))


def test_the_first_frame_must_be_settings(server, connect):
    peer = connect(server, preface=frames.PREFACE + frames.ping(bytes(8)))
    assert peer.read().kind == frames.SETTINGS
    assert peer.go_away().code == Code.PROTOCOL_ERROR
    assert peer.is_closed()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v2/models/x/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000),
        frames.PREFACE[:-1] + b"x" + frames.settings(()),
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_another_protocol_gets_an_error_in_http_1(server, said):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(said)
        response = http.client.HTTPResponse(client)
        response.begin()
        assert (response.status, response.getheader("connection")) == (400, "close")
        assert b"This port speaks HTTP/2" in response.read()
        assert not client.recv(1)
    server.loop.until(lambda: not server.connections)


def test_nothing_is_sent_before_the_clients_preface(server):
    """A client of HTTP/1.1 would read SETTINGS as a malformed response."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(frames.PREFACE)
        server.loop.until(lambda: server.connections)
        assert not select.select([client], [], [], 0.05)[0]
        server.drain()
        with contextlib.suppress(ConnectionResetError):
            assert not client.recv(1)


def test_the_preface_may_come_in_pieces(server, connect):
    peer = connect(server, preface=frames.PREFACE[:5])
    for byte in frames.PREFACE[5:] + frames.settings(()):
        peer.send(bytes([byte]))
    assert peer.is_alive()


MALFORMED = {
    "without a path": [field for field in REQUEST if field[0] != ":path"],
    "with an empty path": to(""),
    "without a method": REQUEST[1:],
    "with a method twice": [REQUEST[0], *REQUEST],
    "with an unknown field with a colon": [(":status", "200"), *REQUEST],
    "with a field with a colon behind others": [*REQUEST, (":authority", "x")],
    "with upper case": [*REQUEST, ("Upper", "x")],
    "with a space in a name": [*REQUEST, ("a b", "x")],
    "with an empty name": [*REQUEST, ("", "x")],
    "with a line break in a value": [*REQUEST, ("a", "x\ny")],
    "with a field of connections": [*REQUEST, ("connection", "close")],
    "with a transfer coding": [*REQUEST, ("transfer-encoding", "chunked")],
    "with te other than trailers": [*REQUEST[:4], ("te", "gzip")],
    "with a length that is none": [*REQUEST, ("content-length", "x")],
    "with two lengths": [*REQUEST, ("content-length", "1"), ("content-length", "2")],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_ends_its_stream_alone(peer, name):
    peer.request(1, fields=MALFORMED[name], ends=True)
    assert peer.reset() == (1, Code.PROTOCOL_ERROR)
    peer.request(3, ends=True)
    assert peer.response(3)[2] == {"x-done": "yes"}


@pytest.mark.parametrize(("said", "sent"), [(3, b"xx"), (1, b"xx"), (0, b"x"), (2, b"")])
def test_content_of_another_length_than_announced_ends_its_stream(peer, said, sent):
    peer.call(1, sent, fields=(*REQUEST, ("content-length", str(said))))
    assert peer.reset() == (1, Code.PROTOCOL_ERROR)
    peer.call(3, b"ok", fields=(*REQUEST, ("content-length", "2")))
    assert peer.response(3)[1] == b"ok"


def test_frames_after_the_end_of_a_request_end_its_stream(peer, server):
    for number, late in (
        (1, raw(frames.DATA, 0, 1, b"x")),
        (3, raw(frames.HEADERS, 5, 3, b"\x00\x01a\x01b")),
    ):
        peer.request(number, fields=HOLD, ends=True)
        peer.send(late)
        assert peer.reset() == (number, Code.STREAM_CLOSED)
    server.loop.until(lambda: [handler.is_cancelled for handler in server.handlers] == [True, True])


def test_a_stream_that_ended_is_not_opened_again(peer):
    peer.request(3, ends=True)
    peer.response(3)
    peer.request(1, ends=True)
    assert peer.go_away().code == Code.STREAM_CLOSED


def test_trailers_must_end_the_request(peer):
    for number, flags in ((1, frames.END_HEADERS | frames.END_STREAM), (3, frames.END_HEADERS)):
        peer.request(number)
        peer.data(number, b"abc")
        peer.send(raw(frames.HEADERS, flags, number, b"\x00\x01a\x01b"))
    assert peer.response(1)[1] == b"abc"
    assert peer.until(frames.RST_STREAM).number == Code.PROTOCOL_ERROR


def test_frames_for_a_stream_that_was_reset_are_ignored(peer):
    """The client may not have seen the reset yet. Its field blocks still change the table."""
    peer.request(1)
    peer.send(frames.window_update(1, 0))
    assert peer.until(frames.RST_STREAM).number == Code.PROTOCOL_ERROR
    peer.data(1, b"late")
    peer.send(frames.window_update(1, 1), frames.reset(1, Code.CANCEL))
    peer.request(1, fields=[("new", "field")], ends=True)
    peer.request(3, fields=(*REQUEST, ("new", "field")), ends=True)
    assert peer.response(3)[0] == {":status": "200", "x-kind": "echo"}


def test_everything_that_rfc_9113_permits_is_accepted(peer):
    block = peer.block((*REQUEST, ("long", "x" * 100)))
    priority = bytes(5)
    peer.send(
        frames.settings([(Setting.MAX_CONCURRENT_STREAMS, 0), (Setting.HEADER_TABLE_SIZE, 1 << 20), (0x99, 7)]),  # type: ignore[list-item]
        frames.SETTINGS_ACK,
        raw(0x42, 0xFF, 7, b"a frame of a kind that is not known"),
        raw(frames.PRIORITY, 0, 11, priority),
        raw(frames.HEADERS, frames.PADDED | frames.WITH_PRIORITY, 1, b"\x03" + priority + block[:20] + bytes(3)),
        raw(frames.CONTINUATION, 0, 1, block[20:30]),
        raw(frames.CONTINUATION, 0, 1),
        raw(frames.CONTINUATION, frames.END_HEADERS, 1, block[30:]),
        raw(frames.DATA, frames.PADDED, 1, b"\x02ab" + bytes(2)),
        raw(frames.DATA, frames.PADDED, 1, b"\x00"),
        raw(frames.DATA, 0, 1),
        raw(frames.PING, frames.ACK, 0, bytes(8)),
        raw(frames.DATA, frames.END_STREAM, 1, b"cd"),
    )
    assert peer.response(1) == ({":status": "200", "x-kind": "echo"}, b"abcd", {"x-done": "yes"})
    peer.send(frames.go_away(0, Code.NO_ERROR))
    peer.request(3, ends=True)
    assert peer.response(3)[1] == b""


def test_settings_are_acknowledged_and_pings_answered(peer):
    peer.send(frames.settings([(Setting.MAX_FRAME_SIZE, 1 << 15)]), frames.ping(b"12345678"))
    acknowledged = [peer.until(frames.SETTINGS) for _ in range(3)]
    assert [frame.flags for frame in acknowledged] == [0, frames.ACK, frames.ACK]
    assert peer.until(frames.PING).payload == b"12345678"

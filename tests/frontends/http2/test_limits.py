"""A client that exceeds a limit is disconnected; other clients notice nothing."""

from __future__ import annotations

import contextlib

import pytest
from frontends.http2.peer import HOLD, REQUEST

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import ErrorCode, Setting
from naiad.frontends.http2.limits import Http2Limits, StreamCount

CALM = ErrorCode.ENHANCE_YOUR_CALM


FEW = Http2Limits(overhead_seconds=100e-6, overhead_share=0)

FLOODS = {
    "PING": frames.ping(bytes(8)),
    "SETTINGS": frames.settings(()),
    "such as PRIORITY": frames.frame(frames.PRIORITY, 0, 5, bytes(5)),
    "without a meaning": frames.frame(0x77, 0, 0, b"x"),
    "DATA frames of few bytes": frames.frame(frames.DATA, 0, 1),
    "few bytes": frames.frame(frames.DATA, frames.PADDED, 1, b"\x03" + bytes(3)),
    "of few bytes": frames.frame(frames.DATA, 0, 1, b"x"),
    "WINDOW_UPDATE": frames.window_update(1, 1),
    "WINDOW_UPDATE frames": frames.window_update(0, 1),
    "RST_STREAM": frames.reset(1, ErrorCode.CANCEL),
}


@pytest.mark.parametrize("name", FLOODS)
def test_frames_without_work_end_the_connection(serve, connect, name):
    server = serve(FEW)
    peer, other = connect(server), connect(server)
    peer.request(1, fields=HOLD)
    peer.send(FLOODS[name] * 200)
    text = peer.calmed()
    assert text.startswith("too many ")
    assert name in text
    assert other.is_alive()


def test_streams_opened_and_reset_too_fast_end_the_connection(serve, connect):
    """CVE-2023-44487."""
    server = serve(FEW)
    peer = connect(server)
    for number in range(1, 201, 2):
        peer.request(number, fields=HOLD)
        peer.send(frames.reset(number, ErrorCode.CANCEL))
    assert "requests that are cancelled (RST_STREAM)" in peer.calmed()
    server.loop.until(lambda: all(handler.is_cancelled for handler in server.handlers))
    assert len(server.handlers) < 100


def test_stream_errors_of_the_client_count_as_resets(serve, connect):
    """CVE-2025-8671."""
    peer = connect(serve(FEW))
    for number in range(1, 201, 2):
        peer.request(number, fields=HOLD)
        peer.send(frames.window_update(number, 0))
    away = peer.go_away()
    assert away.code == CALM
    assert "stream errors" in away.text
    assert away.last < 100


def test_refused_streams_are_not_free(serve, connect):
    peer = connect(serve(Http2Limits(streams=1, overhead_seconds=100e-6, overhead_share=0)))
    for number in range(1, 201, 2):
        peer.request(number, fields=HOLD)
    assert "streams beyond the limit" in peer.calmed()


def test_fields_that_are_costly_to_decode_end_the_connection(serve, connect):
    peer = connect(serve(Http2Limits(overhead_seconds=0.01, overhead_share=0)))
    with contextlib.suppress(ConnectionError):  # it may end before the last one is sent
        for number in range(1, 201, 2):
            peer.request(number, fields=(*HOLD, ("x", f"{number:<8}" * 200)))
    assert "compressed fields" in peer.calmed()


def test_answers_pay_for_frames_and_for_fields(serve, connect):
    """Three times what `FEW` allows, but each portion belongs to a request that is answered."""
    server = serve(Http2Limits(overhead_seconds=1000e-6, overhead_share=0))
    peer = connect(server)
    for number in range(1, 121, 2):
        peer.send(frames.window_update(0, 1) * 30)
        peer.request(number, fields=(*REQUEST, ("x", f"{number:<8}" * 100)), ends=True)
        assert peer.response(number)[2] == {"x-done": "yes"}
    assert peer.is_alive()


def test_a_response_taken_byte_by_byte_is_not_many_answers(serve, connect):
    """CVE-2019-9511."""
    window = frames.settings([(Setting.INITIAL_WINDOW_SIZE, 0)])
    peer = connect(serve(FEW), preface=frames.PREFACE + window)
    peer.call(1, b"x" * 1000)
    assert peer.until(frames.HEADERS, stream=1)
    peer.send(frames.window_update(1, 1) * 200)
    assert "WINDOW_UPDATE" in peer.go_away().text


def test_all_calls_of_a_client_may_be_cancelled_at_once(server, peer):
    count = 3000
    for number in range(1, 2 * count, 2):
        peer.request(number, fields=HOLD)
    for number in range(1, 2 * count, 2):
        peer.send(frames.reset(number, ErrorCode.CANCEL))
    assert peer.is_alive()
    assert sum(handler.is_cancelled for handler in server.handlers) == count


def test_streams_beyond_the_limit_are_refused_and_may_be_tried_again(serve, connect):
    server = serve(Http2Limits(streams=2))
    peer = connect(server)
    assert (Setting.MAX_CONCURRENT_STREAMS, 2) in frames.read_settings(peer.until(frames.SETTINGS).payload)
    for number in (1, 3, 5):
        peer.request(number, fields=HOLD, ends=True)
    assert peer.reset() == (5, ErrorCode.REFUSED_STREAM)
    server.release()
    for number in (1, 3):
        assert peer.until(frames.HEADERS, stream=number)


def test_streams_of_all_connections_are_limited_and_each_has_its_share(serve, connect):
    server = serve(Http2Limits(all_streams=100))
    greedy, modest = connect(server), connect(server)
    for number in range(1, 241, 2):
        greedy.request(number, fields=HOLD)
    assert greedy.is_alive()
    assert server.stream_count.open == 100
    for number in range(1, 141, 2):
        modest.request(number, fields=HOLD, ends=True)
    assert modest.reset() == (129, ErrorCode.REFUSED_STREAM)  # it has 64
    server.release()
    assert modest.until(frames.HEADERS, stream=127)
    greedy.close()
    server.loop.until(lambda: not server.stream_count.open)


def test_shares_together_are_bounded():
    count = StreamCount(Http2Limits(all_streams=1000))
    count.open = 999
    assert count.has_room(own=999, connections=1)
    count.open = 1000
    assert not count.has_room(own=500, connections=2)
    assert count.has_room(own=499, connections=2)
    count.open = 2000
    assert not count.has_room(own=499, connections=2)
    assert count.has_room(own=63, connections=1000)


@pytest.mark.parametrize("end", ["response", "cancel", "error", "disconnect", "refusal"])
def test_each_stream_is_counted_until_its_end(serve, connect, end):
    server = serve(Http2Limits(streams=1))
    peer = connect(server)
    peer.request(1, fields=HOLD, ends=end != "error")
    assert peer.is_alive()
    assert server.stream_count.open == 1
    if end == "response":
        server.release()
    elif end == "cancel":
        peer.send(frames.reset(1, ErrorCode.CANCEL))
    elif end == "error":
        peer.send(frames.window_update(1, 0))
    elif end == "refusal":
        peer.request(3, fields=HOLD)
        assert peer.until(frames.RST_STREAM).stream == 3
        assert server.stream_count.open == 1
        peer.close()
    else:
        peer.close()
    server.loop.until(lambda: not server.stream_count.open)


@pytest.mark.parametrize("piece", [b"", b"\x82"])
def test_a_block_that_does_not_end_ends_the_connection(serve, connect, piece):
    peer = connect(serve())
    more = frames.frame(frames.CONTINUATION, 0, 1, piece)
    peer.send(frames.frame(frames.HEADERS, 0, 1, b"\x82"), more * 100)
    away = peer.go_away()
    assert (away.code, away.text) == (CALM, "a field block does not end")


def test_a_small_block_of_many_fields_ends_the_connection(peer):
    """Each byte refers to a field of 4,000 bytes that was sent once."""
    peer.request(1, fields=(*REQUEST, ("big", "x" * 4000)))
    peer.send(frames.frame(frames.HEADERS, frames.END_HEADERS, 3, b"\xbe" * 60_000))
    assert peer.go_away().code == CALM


def test_a_client_without_a_preface_is_disconnected(serve, connect):
    peer = connect(serve(Http2Limits(handshake_seconds=0.05)), preface=b"PRI")
    assert peer.is_closed()

"""A client that exceeds a limit is disconnected; other clients notice nothing."""

from __future__ import annotations

import pytest
from frontends.http2.peer import REQUEST
from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import ErrorCode, Setting
from naiad.frontends.http2.limits import Http2Limits, TokenBucket

HOLD = tuple((name, "/hold" if name == ":path" else value) for name, value in REQUEST)
CALM = ErrorCode.ENHANCE_YOUR_CALM


def test_a_token_bucket_allows_a_burst_and_then_a_rate():
    bucket = TokenBucket(3, 2, now=10)
    assert [bucket.take(10) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(11) for _ in range(3)] == [True, True, False]
    assert [bucket.take(100) for _ in range(4)] == [True, True, True, False]


FEW = Http2Limits(resets=20, resets_per_second=0, control_frames=20, control_frames_per_second=0)

FLOODS = {
    "pings": frames.ping(bytes(8)),
    "settings": frames.settings(()),
    "priorities": frames.frame(frames.PRIORITY, 0, 5, bytes(5)),
    "frames of unknown kinds": frames.frame(0x77, 0, 0, b"x"),
    "empty DATA": frames.frame(frames.DATA, 0, 1),
    "padding alone": frames.frame(frames.DATA, frames.PADDED, 1, b"\x03" + bytes(3)),
}


@pytest.mark.parametrize("name", FLOODS)
def test_control_frames_are_counted(serve, connect, name):
    server = serve(FEW)
    peer, other = connect(server), connect(server)
    peer.request(1, fields=HOLD)
    peer.send(FLOODS[name] * 40)
    away = peer.go_away()
    assert (away.code, away.text) == (CALM, "too many control frames")
    assert other.is_alive()


def test_streams_opened_and_reset_too_fast_end_the_connection(serve, connect):
    """CVE-2023-44487."""
    server = serve(FEW)
    peer = connect(server)
    for number in range(1, 61, 2):
        peer.request(number, fields=HOLD)
        peer.send(frames.reset(number, ErrorCode.CANCEL))
    assert peer.go_away().code == CALM
    server.loop.until(lambda: all(handler.is_cancelled for handler in server.handlers))
    assert len(server.handlers) == 21


def test_stream_errors_of_the_client_count_as_resets(serve, connect):
    """CVE-2025-8671."""
    peer = connect(serve(FEW))
    for number in range(1, 61, 2):
        peer.request(number, fields=HOLD)
        peer.send(frames.window_update(number, 0))
    assert peer.go_away() == (41, CALM, "too many stream errors")


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
    refused = peer.until(frames.RST_STREAM)
    assert (refused.stream, refused.number) == (5, ErrorCode.REFUSED_STREAM)
    server.release()
    for number in (1, 3):
        assert peer.until(frames.HEADERS, stream=number)


@pytest.mark.parametrize("piece", [b"", b"\x82"])
def test_a_block_that_does_not_end_ends_the_connection(serve, connect, piece):
    peer = connect(serve())
    more = frames.frame(frames.CONTINUATION, 0, 1, piece)
    peer.send(frames.frame(frames.HEADERS, 0, 1, b"\x82"), more * 100)
    away = peer.go_away()
    assert (away.code, away.text) == (CALM, "a field block does not end")


def test_a_block_that_is_too_long_ends_the_connection(peer):
    peer.send(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, bytes(70_000)))
    assert peer.go_away().code == CALM


def test_a_small_block_of_many_fields_ends_the_connection(peer):
    """Each byte refers to a field of 4,000 bytes that was sent once."""
    peer.request(1, fields=(*REQUEST, ("big", "x" * 4000)))
    peer.send(frames.frame(frames.HEADERS, frames.END_HEADERS, 3, b"\xbe" * 60_000))
    assert peer.go_away().code == CALM


def test_a_client_without_a_preface_is_disconnected(serve, connect):
    peer = connect(serve(Http2Limits(handshake_seconds=0.05)), preface=b"PRI")
    assert peer.is_closed()

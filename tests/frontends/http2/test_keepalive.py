"""Keepalive pings, the client's pings, maximum age and graceful shutdown."""

from __future__ import annotations

import pytest
from frontends.http2.peer import HOLD

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import ErrorCode


def test_a_graceful_shutdown_of_an_idle_connection_closes_it_at_once(server, peer):
    server.loop.until(lambda: server.connections)
    assert peer.is_alive()
    server.drain()
    ping = peer.until(frames.PING)
    peer.send(frames.ping(ping.payload, is_ack=True))
    assert peer.go_away().last == 0
    assert peer.is_closed()


def test_a_request_that_was_sent_before_a_shutdown_is_answered_even_if_the_preface_was_not_read(server, connect):
    """The connection was aborted: a client that connected just before the server stopped lost its request."""
    peer = connect(server, preface=b"")
    server.loop.until(lambda: server.connections)

    def send_and_drain() -> None:  # on the server's loop, which therefore reads what was sent only afterwards
        peer.send(frames.PREFACE + frames.settings(()))
        peer.request(1, ends=True)
        for connection in server.connections:
            connection.drain()

    server.loop.call(send_and_drain)
    assert peer.go_away().last == frames.MAX_STREAM
    peer.send(frames.ping(peer.until(frames.PING).payload, is_ack=True))
    assert peer.go_away().last == 1


def test_a_shutdown_does_not_wait_long_for_a_client_that_sends_nothing(server, connect):
    peer = connect(server, preface=b"")
    server.loop.until(lambda: server.connections)
    server.drain()
    assert peer.is_closed()


def test_a_silent_client_is_pinged_and_stays_if_it_acknowledges(serve, connect):
    peer = connect(
        serve(keepalive_time=0.05, keepalive_timeout=10, keepalive_without_calls=True, max_pings_without_data=0)
    )
    for _ in range(3):
        ping = peer.until(frames.PING)
        peer.send(frames.ping(ping.payload, is_ack=True))
    assert peer.is_alive()


def test_a_client_that_does_not_acknowledge_a_ping_is_disconnected(serve, connect):
    peer = connect(serve(keepalive_time=0.05, keepalive_timeout=0.05, keepalive_without_calls=True))
    peer.until(frames.PING)
    assert peer.is_closed()


def test_clients_without_calls_are_not_pinged_unless_permitted(serve, connect):
    server = serve(keepalive_time=0.02, keepalive_timeout=0.02)
    idle, busy = connect(server), connect(server)
    busy.request(1, fields=HOLD)
    busy.until(frames.PING)
    assert idle.is_alive()


def test_pings_without_data_are_limited(serve, connect):
    server = serve(keepalive_time=0.02, keepalive_without_calls=True, max_pings_without_data=2)
    peer = connect(server)
    for _ in range(2):
        peer.send(frames.ping(peer.until(frames.PING).payload, is_ack=True))
    peer.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.until(frames.PING)


def strikes(peer, count):
    for _ in range(count):
        peer.send(frames.ping(bytes(8)))


@pytest.mark.parametrize("calls", [True, False])
def test_pings_that_come_too_fast_are_strikes(serve, connect, calls):
    interval = 300 if calls else 0
    peer = connect(serve(max_ping_strikes=2, min_ping_interval=interval))
    if calls:
        peer.request(1, fields=HOLD)
    strikes(peer, 4)
    away = peer.go_away()
    assert (away.code, away.text) == (ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")


@pytest.mark.parametrize(
    "settings", [{"max_ping_strikes": 0}, {"min_ping_interval": 0, "keepalive_without_calls": True}]
)
def test_pings_may_be_allowed(serve, connect, settings):
    peer = connect(serve(**settings))
    strikes(peer, 20)
    assert peer.is_alive()


def test_data_between_pings_forgives_them(serve, connect):
    peer = connect(serve(max_ping_strikes=2))
    for number in range(1, 21, 2):
        strikes(peer, 2)
        peer.request(number, ends=True)
        peer.response(number)


def test_a_connection_ends_at_its_greatest_age_and_its_calls_a_grace_later(serve, connect):
    server = serve(max_age=0.5, max_age_grace=0.3)  # a busy machine needs some time to send the request
    peer = connect(server)
    peer.request(1, fields=HOLD, ends=True)
    assert peer.go_away().last == frames.MAX_STREAM
    assert peer.is_closed()
    server.loop.until(lambda: server.handlers[0].is_cancelled)

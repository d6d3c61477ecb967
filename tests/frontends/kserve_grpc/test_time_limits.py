"""Messages that stop arriving end their calls."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest
from frontends.http2.peer import Peer
from frontends.kserve_grpc.test_call_rules import INFER, LIVE, STREAM, ask, fields, infer_request, prefixed, status

from naiad.frontends.grpc.calls import GrpcCall
from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.grpc.time_limits import MessageTimeCheck
from naiad.frontends.http2.stream import Stream

STALLED = "cannot read the request: no byte of a message arrived within 200 ms (--grpc-message-timeout)"


@contextlib.contextmanager
def peer_of(served) -> Iterator[Peer]:
    with contextlib.closing(Peer(served.port)) as peer:
        yield peer


@pytest.fixture
def impatient(serve):
    return serve(GrpcSettings(message_timeout_ms=200))


@pytest.mark.parametrize("path", [INFER, STREAM, LIVE])
@pytest.mark.parametrize("size", [3, 1000, 300_000])
def test_a_message_that_stops_arriving_ends_its_call(impatient, path, size):
    with peer_of(impatient) as peer:
        peer.request(1, fields=fields(path))
        peer.data(1, prefixed(bytes(max(size, 5)), size=2_000_000)[:size])
        assert status(peer.response(1)) == ("DEADLINE_EXCEEDED", STALLED)
        assert status(ask(peer, stream=3)) == ("OK", "")


def test_a_unary_call_without_a_message_ends(impatient):
    with peer_of(impatient) as peer:
        peer.request(1, fields=fields(INFER))
        assert status(peer.response(1)) == ("DEADLINE_EXCEEDED", STALLED)


def test_a_stream_between_messages_and_a_call_that_is_executed_may_take_any_time(impatient):
    with peer_of(impatient) as peer:
        peer.request(1, fields=fields(STREAM))
        peer.request(3, fields=fields(INFER))
        peer.data(3, prefixed(infer_request("held")), ends=True)
        impatient.loop.until(lambda: impatient.engine.held)
        peer.request(5, fields=fields(INFER))
        assert status(peer.response(5)) == ("DEADLINE_EXCEEDED", STALLED), "they were checked as often as this one"
        impatient.loop.call(impatient.engine.release)
        assert status(peer.response(3)) == ("OK", "")
        peer.data(1, prefixed(infer_request()), ends=True)
        assert status(peer.response(1)) == ("OK", "")


def test_a_connection_whose_client_leaves_within_a_message_is_freed():
    class Call(GrpcCall):
        is_within_message = True

        def __init__(self):
            pass

    class Connection:
        is_reading, data_left = True, 0

        def __init__(self):
            self.streams = [Stream(1, self, None, 0, 5)]
            self.streams[0].handler = Call()

    connection = Connection()
    check = MessageTimeCheck(60)
    check.check(connection, 0.0)
    left = weakref.ref(connection)
    del connection
    gc.collect()

    assert left() is None

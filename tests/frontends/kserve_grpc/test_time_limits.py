"""Messages that stop arriving end their calls."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from frontends.http2.peer import Peer
from frontends.kserve_grpc.test_call_rules import INFER, LIVE, STREAM, ask, fields, infer_request, prefixed, status

from naiad.frontends.grpc.calls import GrpcCall
from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.grpc.time_limits import MessageTimeCheck
from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import ErrorCode, Setting
from naiad.frontends.http2.send_buffer import SendBuffer
from naiad.frontends.http2.stream import Stream
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.request_memory import RequestMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor

STALLED = "cannot read the request: no byte of a message arrived within 200 ms (--client-timeout)"


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
        peer.call(3, prefixed(infer_request("held")), fields=fields(INFER))
        impatient.loop.until(lambda: impatient.engine.held)
        peer.request(5, fields=fields(INFER))
        assert status(peer.response(5)) == ("DEADLINE_EXCEEDED", STALLED), "they were checked as often as this one"
        impatient.loop.call(impatient.engine.release)
        assert status(peer.response(3)) == ("OK", "")
        peer.data(1, prefixed(infer_request()), ends=True)
        assert status(peer.response(1)) == ("OK", "")


CLOSED = frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 0)])
"""A client that opens no window."""
MIB = 1 << 20


def infer(peer: Peer, stream: int, path: str = INFER, *, ends: bool = True) -> None:
    """Send a short request."""
    peer.call(stream, prefixed(infer_request()), fields=fields(path), ends=ends)


def answer_at_length(served, size: int) -> None:
    """Let the model respond with *size* bytes to requests of any size: long requests may stop arriving, too."""

    def answer(engine, request, sink):
        output = OutputTensor("OUTPUT0", Datatype.UINT8, (size,), memoryview(bytes(size)))
        sink.send(InferResponse(request.model_name, 1, outputs=[output]), True)

    served.engine.models["identity"].answer = answer


def reset(peer: Peer, stream: int) -> ErrorCode:
    """The code with which a stream is reset."""
    return ErrorCode(peer.until(frames.RST_STREAM, stream=stream).number)


@pytest.mark.parametrize("size", [4, MIB])
def test_a_unary_call_whose_response_is_not_read_ends(serve, size):
    memory = RequestMemory()
    served = serve(GrpcSettings(message_timeout_ms=200), memory=memory)
    with contextlib.closing(Peer(served.port, preface=CLOSED)) as peer:
        answer_at_length(served, size)
        infer(peer, 1)
        assert reset(peer, 1) is ErrorCode.ENHANCE_YOUR_CALM
        assert (memory.budget.in_use, memory.budget.dropped) == (0, {"time": 1})
        assert peer.is_alive()


@pytest.mark.parametrize(("rate", "ended_after"), [(0, 60), (400, 60), (2000, 60), (2100, None)])
def test_a_response_has_to_be_read_at_a_rate(rate, ended_after):
    """The windows that a client opens, in bytes a second, with a clock of the test."""
    reset: list[Stream] = []

    class Call(GrpcCall):
        is_unary, is_within_message = True, False

        def __init__(self):
            pass

    stream = Stream(1, SimpleNamespace(unsent=0, cancel_stream=lambda each, _: reset.append(each)), None, 0, 0)
    stream.handler = Call()
    stream.unsent_data = SendBuffer()
    stream.unsent_data.put([bytes(MIB)], MIB)

    class Connection:
        is_reading, data_left, streams = True, 0, (stream,)
        writer = SimpleNamespace(is_paused=False)

    connection, check, now = Connection(), MessageTimeCheck(60, RequestBudget()), 0
    check.check(connection, now)
    while stream.unsent_data and not reset:
        stream.unsent_data.take(1, rate * 5, 1 << 14)
        now += 5
        check.check(connection, now)
    assert (now if reset else None) == ended_after


def test_the_messages_of_a_stream_may_wait_for_any_time(impatient):
    with contextlib.closing(Peer(impatient.port, preface=CLOSED)) as peer:
        answer_at_length(impatient, MIB)
        infer(peer, 1, STREAM, ends=False)
        infer(peer, 3)
        assert reset(peer, 3) is ErrorCode.ENHANCE_YOUR_CALM, "they were checked as often as this one"
        peer.send(frames.window_update(1, 1 << 30), frames.window_update(0, 1 << 30))
        received = 0
        while received < MIB:
            received += len(peer.until(frames.DATA, stream=1).payload)


def test_a_connection_whose_client_does_not_read_its_socket_ends(serve):
    memory = RequestMemory()
    served = serve(GrpcSettings(message_timeout_ms=200), memory=memory)
    answer_at_length(served, 32 * MIB)
    wide = frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 30)]) + frames.window_update(0, 1 << 30)
    with contextlib.closing(Peer(served.port, preface=wide)) as peer:
        infer(peer, 1)
        served.loop.until(lambda: memory.budget.dropped["time"] == 2)  # the stream, and the connection
        assert peer.is_closed()
        served.loop.until(lambda: not memory.budget.in_use)


def test_a_response_for_which_there_is_no_room_becomes_an_error(serve):
    memory = RequestMemory(8 * MIB)
    served = serve(memory=memory)
    answer_at_length(served, 4_000_000)
    text = (
        "cannot send the response: requests in flight use all of the 8388608 bytes that they may use together; try "
        "again later, ask for a shorter one, or set --memory-limit-requests"
    )
    with contextlib.closing(Peer(served.port, preface=CLOSED)) as peer, peer_of(served) as other:
        for stream in range(1, 81, 2):
            infer(peer, stream)
        for stream in range(7, 81, 2):
            assert status(peer.response(stream)) == ("RESOURCE_EXHAUSTED", text)
        assert memory.budget.dropped == {"full": 37}
        assert memory.budget.in_use == pytest.approx(12_000_000, abs=4000)
        assert status(ask(other)) == ("OK", ""), "what is short needs no room"


def test_a_connection_whose_client_leaves_within_a_message_is_freed():
    class Call(GrpcCall):
        is_within_message = True
        is_unary = True

        def __init__(self):
            pass

    class Connection:
        is_reading, data_left = True, 0
        writer = SimpleNamespace(is_paused=False)

        def __init__(self):
            self.streams = [Stream(1, self, None, 0, 5)]
            self.streams[0].handler = Call()

    connection = Connection()
    check = MessageTimeCheck(60, RequestBudget())
    check.check(connection, 0.0)
    left = weakref.ref(connection)
    del connection
    gc.collect()

    assert left() is None

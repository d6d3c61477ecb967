"""Calls as bytes: what client libraries never send or never show."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import struct
import zlib
from urllib.parse import unquote

import pytest
from frontends.http2.peer import Peer
from tritonclient.grpc import service_pb2

from naiad.core.errors import InvalidRequestError
from naiad.frontends.grpc.calls import GrpcCall
from naiad.frontends.grpc.coroutine_method import CoroutineRun
from naiad.frontends.grpc.messages import MessageReader
from naiad.frontends.grpc.request_messages import RequestMessages
from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import ErrorCode, Setting
from naiad.frontends.kserve_grpc import model_stream_infer
from naiad.frontends.kserve_grpc.infer_stream import InferStream
from naiad.frontends.kserve_grpc.model_infer import ModelInfer
from naiad.frontends.kserve_grpc.model_stream_infer import ModelStreamInfer
from naiad.frontends.status import GrpcStatus

LIVE = "/inference.GRPCInferenceService/ServerLive"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def fields(path=LIVE, **changes):
    given = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        "te": "trailers",
        "content-type": "application/grpc",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return [(name, value) for name, value in given.items() if value is not None]


def prefixed(message=b"", flag=0, size=None):
    return struct.pack(">BL", flag, len(message) if size is None else size) + message


def infer_request(model="identity", size=1, identity=""):
    name, datatype = ("IN", "INT32") if model == "repeat" else ("INPUT0", "FP32")
    request = service_pb2.ModelInferRequest(model_name=model, id=identity)
    request.inputs.add(name=name, datatype=datatype, shape=[size])
    request.raw_input_contents.append(bytes(4 * size) if model != "repeat" else struct.pack("<i", size))
    if model == "repeat":
        request.inputs[0].shape[0] = 1
    return request.SerializeToString()


@pytest.fixture
def peer(served):
    with contextlib.closing(Peer(served.port)) as peer:
        yield peer


@pytest.fixture
def connect(served):
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(contextlib.closing(Peer(served.port, **options)))


EMPTY = prefixed()


def windows(size):
    """A preface by which each stream has a window of *size* bytes."""
    return frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, size)])


def open_stream(connect):
    """A connection with large windows on which a call of ModelStreamInfer has begun."""
    peer = connect(preface=windows(1 << 28))
    peer.send(frames.window_update(0, 1 << 28))
    peer.request(1, fields=fields(STREAM))
    return peer


def ask(peer, content=EMPTY, stream=1, **options):
    if content is None:
        peer.request(stream, fields=fields(**options))
    else:
        peer.call(stream, content, fields=fields(**options))
    return peer.response(stream)


def status(response):
    """Status and text, from the trailers or from a trailers-only response."""
    first, _, last = response
    found = last or first
    return GrpcStatus(int(found["grpc-status"])).name, found.get("grpc-message", "")


def test_a_response_is_headers_a_message_and_trailers(peer):
    assert ask(peer) == (
        {":status": "200", "content-type": "application/grpc", "grpc-accept-encoding": "identity, deflate, gzip"},
        prefixed(b"\x08\x01"),
        {"grpc-status": "0"},
    )


def test_an_error_is_trailers_only_and_its_text_is_percent_encoded(served, peer):
    def answer(engine, request, sink):
        raise ZeroDivisionError("50 % ünïcode\n")

    served.engine.models["identity"].answer = answer
    first, content, last = ask(peer, prefixed(infer_request()), path=INFER)
    assert (content, last) == (b"", {})
    assert first == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "2",
        "grpc-message": "Unexpected <class 'ZeroDivisionError'>: 50 %25 %C3%BCn%C3%AFcode%0A",
    }


def test_an_error_keeps_the_spaces_around_its_text(served, peer):
    def answer(engine, request, sink):
        raise InvalidRequestError("  two before, one behind ")

    served.engine.models["identity"].answer = answer
    text = status(ask(peer, prefixed(infer_request()), path=INFER))[1]
    assert text == "%20 two before, one behind%20"
    assert unquote(text) == "  two before, one behind "


def test_a_long_message_in_one_frame_counts_in_the_budget_until_its_call_ends(served, peer):
    budget = served.frontend._extensions.memory.budget
    peer.request(1, fields=fields(INFER))
    content = prefixed(infer_request("held", size=4096))
    assert len(content) > frames.DEFAULT_FRAME_SIZE
    peer.send(frames.head(frames.DATA, frames.END_STREAM, 1, len(content)) + content)
    assert status(ask(peer, stream=3)) == ("OK", "")
    assert budget.in_use == len(content) - len(EMPTY)
    served.loop.call(served.engine.release)
    assert status(peer.response(1)) == ("OK", "")
    assert budget.in_use == 0


def test_a_long_message_in_one_frame_is_refused_where_the_budget_has_no_room(served, peer):
    budget = served.frontend._extensions.memory.budget
    budget.limit = budget.soft_limit = 16_000
    peer.request(1, fields=fields(INFER))
    content = prefixed(infer_request(size=4096))
    peer.send(frames.head(frames.DATA, frames.END_STREAM, 1, len(content)) + content)
    name, text = status(peer.response(1))
    assert (name, "that all requests in flight may use together" in text) == ("RESOURCE_EXHAUSTED", True)
    assert budget.in_use == 0
    assert status(ask(peer, stream=3)) == ("OK", "")


@pytest.mark.parametrize("timeout", ["99999999H", "99999999S", "1H", "9999999M"])
def test_a_call_may_take_very_long(peer, timeout):
    assert status(ask(peer, grpc_timeout=timeout)) == ("OK", "")


@pytest.mark.parametrize("timeout", ["0S", "1n", "0H", "00000001u"])
def test_a_deadline_may_be_over_at_once(served, peer, timeout):
    response = ask(peer, prefixed(infer_request("held")), path=INFER, grpc_timeout=timeout)
    assert status(response)[0] == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("timeout", ["", "S", "1", "-1S", "1.5S", "1s", "1 S", "123456789n", "1SS"])
def test_a_malformed_deadline_is_refused(peer, timeout):
    name, text = status(ask(peer, None, grpc_timeout=timeout))
    assert (name, text.partition(":")[0]) == ("INTERNAL", "malformed grpc-timeout")


@pytest.mark.parametrize(
    ("changes", "http", "expected"),
    [
        ({"content_type": "text/plain"}, "415", "INVALID_ARGUMENT"),
        ({"content_type": None}, "415", "INVALID_ARGUMENT"),
        ({"content_type": "application/grpc-web"}, "415", "INVALID_ARGUMENT"),
        ({":method": "GET"}, "405", "INTERNAL"),
        ({"path": "/inference.GRPCInferenceService/Nope"}, "200", "UNIMPLEMENTED"),
        ({"path": "/"}, "200", "UNIMPLEMENTED"),
        ({"grpc_timeout": "1"}, "200", "INTERNAL"),
        ({"grpc_timeout": "123456789S"}, "200", "INTERNAL"),
        ({"grpc_encoding": "snappy"}, "200", "UNIMPLEMENTED"),
        ({"padding": "x" * 17_000}, "200", "RESOURCE_EXHAUSTED"),
    ],
)
def test_invalid_calls_are_refused_before_their_message(peer, changes, http, expected):
    first, _, _ = response = ask(peer, None, **changes)
    assert (first[":status"], status(response)[0]) == (http, expected)
    assert status(response)[1]
    assert peer.until(frames.RST_STREAM).number == ErrorCode.NO_ERROR
    assert status(ask(peer, stream=3)) == ("OK", "")


def test_of_several_messages_the_first_is_used(peer):
    """As Triton 2.51 does."""
    assert status(ask(peer, prefixed() + prefixed(b"\xff"))) == ("OK", "")


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8", "Application/GRPC"])
def test_content_types_may_say_more(peer, kind):
    assert status(ask(peer, content_type=kind)) == ("OK", "")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "INTERNAL"),
        (prefixed(b"abc", size=4), "INTERNAL"),
        (b"\x00\x00", "INTERNAL"),
        (prefixed(flag=1), "INTERNAL"),
        (prefixed(flag=2), "INTERNAL"),
        (prefixed(b"\xff\xff"), "INTERNAL"),
        (prefixed(size=2**31), "RESOURCE_EXHAUSTED"),
    ],
)
@pytest.mark.parametrize("path", [LIVE, INFER])
def test_content_that_is_no_message_is_an_error(peer, content, expected, path):
    name, text = status(ask(peer, content, path=path))
    assert name == expected
    assert text
    assert status(ask(peer, stream=3)) == ("OK", "")


def test_a_message_may_arrive_in_any_pieces(peer):
    message = prefixed(infer_request(size=100, identity="x"))
    for number, step in ((1, 1), (3, 7), (5, 300)):
        peer.request(number, fields=fields(INFER))
        for start in range(0, len(message), step):
            peer.data(number, message[start : start + step])
        peer.data(number, b"", ends=True)
        assert status(peer.response(number)) == ("OK", "")


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_messages_are_decompressed_one_by_one(peer, name, pack):
    packed = pack(infer_request(size=1000))
    assert status(ask(peer, prefixed(packed, flag=1), path=INFER, grpc_encoding=name)) == ("OK", "")
    assert status(ask(peer, prefixed(infer_request()), stream=3, path=INFER, grpc_encoding=name)) == ("OK", "")
    broken = status(ask(peer, prefixed(packed[:-9], flag=1), stream=5, path=INFER, grpc_encoding=name))
    assert broken[0] == "INTERNAL"
    assert f"algorithm {name}" in broken[1]


def test_a_deadline_ends_the_call_and_cancels_its_request(served, peer):
    response = ask(peer, prefixed(infer_request("held")), path=INFER, grpc_timeout="300m")
    assert status(response) == ("DEADLINE_EXCEEDED", "Deadline Exceeded")
    served.loop.until(lambda: served.engine.cancelled)
    response = ask(peer, prefixed(infer_request("held")), stream=3, path=STREAM, grpc_timeout="300000u")
    assert status(response)[0] == "DEADLINE_EXCEEDED"


def test_a_control_call_completes_after_its_client_cancelled(served, peer):
    """A load may take longer than its client's deadline."""
    begun, may_go_on, done = [], asyncio.Event(), []

    async def load(name, parameters):
        begun.append(name)
        await may_go_on.wait()
        done.append(name)

    served.engine.load = load
    path = "/inference.GRPCInferenceService/RepositoryModelLoad"
    content = prefixed(service_pb2.RepositoryModelLoadRequest(model_name="slow").SerializeToString())
    assert status(ask(peer, content, path=path, grpc_timeout="50m"))[0] == "DEADLINE_EXCEEDED"
    peer.call(3, content, fields=fields(path))
    served.loop.until(lambda: len(begun) == 2)
    peer.close()
    served.loop.until(lambda: not served.frontend._server.connections)
    served.loop.call(may_go_on.set)
    served.loop.until(lambda: len(done) == 2)


def test_a_reset_cancels_the_request(served, peer):
    for number, path in ((1, INFER), (3, STREAM)):
        peer.call(number, prefixed(infer_request("held")), fields=fields(path))
    served.loop.until(lambda: len(served.engine.held) == 2)
    peer.send(frames.reset(1, ErrorCode.CANCEL), frames.reset(3, ErrorCode.CANCEL))
    served.loop.until(lambda: len(served.engine.cancelled) == 2)
    assert status(ask(peer, stream=5)) == ("OK", "")


def buffers():
    """The buffers that readers of messages refer to."""
    readers = [each for each in gc.get_objects() if isinstance(each, MessageReader)]
    return gc.get_referents(*readers)


def test_half_a_message_is_freed_with_its_call(served, peer):
    """Garbage collections are rare, so nothing may wait for one."""
    gc.collect()
    gc.disable()
    try:
        for number, path in ((1, STREAM), (3, INFER)):
            peer.request(number, fields=fields(path))
            peer.data(number, prefixed(bytes(100_000), size=1_000_000))
        assert peer.is_alive()
        assert sum(isinstance(each, bytearray) and len(each) >= 100_000 for each in buffers()) == 2
        peer.send(frames.reset(1, ErrorCode.CANCEL), frames.reset(3, ErrorCode.CANCEL))
        assert peer.is_alive()
        assert not any(isinstance(each, bytearray) and len(each) >= 100_000 for each in buffers())
    finally:
        gc.enable()


OF_CALLS = (GrpcCall, RequestMessages, MessageReader, CoroutineRun, ModelInfer, ModelStreamInfer, InferStream)


def test_a_thousand_calls_leave_nothing_to_the_garbage_collector(served, connect):
    """Whatever ends a call, it and its method are freed at once."""
    peer = connect(preface=windows(1 << 28))
    peer.send(frames.window_update(0, 1 << 30))
    ends_stream = [("triton_grpc_error", "true")]
    ways = (
        (LIVE, b"", {}),
        (LIVE, b"malformed", {}),
        (INFER, infer_request(), {}),
        (INFER, infer_request("unknown"), {}),
        (INFER, infer_request(size=5_000), {}),  # counts in the budget, within one frame and in several
        (INFER, infer_request(size=30_000), {}),
        (INFER, gzip.compress(infer_request()), {"flag": 1, "grpc_encoding": "gzip"}),
        (INFER, infer_request("held"), {"grpc_timeout": "1m"}),
        (STREAM, infer_request(), {}),
        (STREAM, infer_request("unknown"), {}),
        (STREAM, infer_request("unknown"), {"more": ends_stream}),
        (STREAM, infer_request("repeat", 3), {}),
        (STREAM, infer_request(size=20_000), {}),
        (STREAM, gzip.compress(infer_request()), {"flag": 1, "grpc_encoding": "gzip"}),
        (STREAM, infer_request("held"), {"grpc_timeout": "1m"}),
        (STREAM, b"malformed", {}),
    )
    gc.collect()
    gc.disable()
    try:
        for number in range(1, 2001, 2):
            path, message, options = ways[number // 2 % len(ways)]
            options = dict(options)
            content, more = prefixed(message, flag=options.pop("flag", 0)), options.pop("more", [])
            peer.request(number, fields=[*fields(path, **options), *more])
            if number // 2 % 10 == 9:  # cancelled within its message, or while it is held
                peer.data(number, content[:-1])
                peer.send(frames.reset(number, ErrorCode.CANCEL))
                continue
            peer.data(number, content, ends=True)
            peer.response(number)
        assert peer.is_alive()  # so that the cancellations have arrived
        served.loop.call(served.engine.held.clear)
        left = [type(each).__name__ for each in gc.get_objects() if isinstance(each, OF_CALLS)]
        assert left == []
    finally:
        gc.enable()


def test_the_end_of_the_connection_cancels_all_requests(served, peer):
    for number in range(1, 41, 2):
        peer.call(number, prefixed(infer_request("held")), fields=fields(INFER))
    served.loop.until(lambda: len(served.engine.held) == 20)
    peer.close()
    served.loop.until(lambda: len(served.engine.cancelled) == 20)


def test_a_thousand_calls_at_once_on_one_connection_are_answered(served, peer):
    numbers = range(1, 2001, 2)
    for number in numbers:
        peer.call(number, prefixed(infer_request("held", identity=str(number))), fields=fields(INFER))
    served.loop.until(lambda: len(served.engine.held) == 1000)
    served.loop.call(served.engine.release)
    seen, ended = {}, set()
    while len(ended) < 1000:
        frame = peer.read()
        if frame.kind == frames.DATA:
            seen[frame.stream] = service_pb2.ModelInferResponse.FromString(frame.payload[5:]).id
        elif frame.flags & frames.END_STREAM and frame.kind == frames.HEADERS:
            ended.add(frame.stream)
    assert seen == {number: str(number) for number in numbers}


def test_a_model_is_held_back_by_a_client_that_does_not_read_its_stream(served, connect):
    """Responses are confirmed to the engine only once they are sent."""
    model = served.engine.models["repeat"]
    at_once = model.answer
    model.answer = lambda *arguments: asyncio.get_running_loop().call_soon(at_once, *arguments)
    peer = connect(preface=windows(100))
    peer.request(1, fields=fields(STREAM))
    peer.data(1, prefixed(infer_request("repeat", 50)))
    content = b""
    while len(content) < 100:
        content += peer.until(frames.DATA).payload
    assert served.loop.call(lambda: sum(served.engine.confirmed_counts.values())) < 5
    peer.send(frames.window_update(1, 1 << 20), frames.window_update(0, 1 << 20))
    while content.count(b"repeat") < 50:
        content += peer.until(frames.DATA).payload
    served.loop.until(lambda: sum(served.engine.confirmed_counts.values()) == 50)


def test_requests_of_a_client_that_does_not_read_wait(served, connect):
    """A model that responds once cannot be held back; the stream accepts no more requests instead."""
    peer = connect(preface=windows(0))
    peer.request(1, fields=fields(STREAM))
    message = prefixed(infer_request(size=100_000))
    for _ in range(30):
        peer.data(1, message)
    assert peer.is_alive()
    served.loop.turn(100)
    assert len(served.engine.requests) < 15
    peer.send(frames.window_update(1, 1 << 28), frames.window_update(0, 1 << 28))
    received = 0
    while received < 30 * 400_000:
        received += len(peer.until(frames.DATA).payload)
    assert len(served.engine.requests) == 30
    peer.data(1, b"", ends=True)
    assert peer.fields(peer.until(frames.HEADERS).payload) == {"grpc-status": "0"}


@pytest.mark.parametrize("cut", [7000, 16_000, 200_000])
def test_requests_that_arrive_at_once_are_answered_in_turns_and_in_order(connect, cut):
    """A share of the turn is used up again and again; what arrives meanwhile is kept as it is, cut anywhere."""
    count = 3000
    peer = open_stream(connect)
    whole = b"".join(prefixed(infer_request(identity=str(number))) for number in range(count))
    for start in range(0, len(whole), cut):
        peer.data(1, whole[start : start + cut], ends=start + cut >= len(whole))
    received = peer.response(1)
    assert received[2] == {"grpc-status": "0"}
    assert ids(received[1]) == [str(number) for number in range(count)]


def test_requests_that_end_within_a_message_are_an_error_behind_the_others(connect):
    peer = open_stream(connect)
    whole = prefixed(infer_request()) * 2000 + prefixed(b"x", size=5)
    for start in range(0, len(whole), 16_000):
        peer.data(1, whole[start : start + 16_000], ends=start + 16_000 >= len(whole))
    first, content, last = peer.response(1)
    assert status((first, b"", last)) == ("INTERNAL", "the request ends within a message")
    assert len(ids(content)) == 2000


def ids(content):
    """The requests that messages of a stream respond to."""
    found, position = [], 0
    while position < len(content):
        (size,) = struct.unpack_from(">L", content, position + 1)
        position += 5 + size
        response = service_pb2.ModelStreamInferResponse.FromString(content[position - size : position])
        found.append(response.infer_response.id)
    return found


def test_further_messages_of_a_unary_call_are_ignored_wherever_they_are_cut(connect):
    peer = connect()
    for stream, pieces in enumerate(([3, 2], [1, 9], [2000, 2000], [5, 4, 1])):
        peer.request(2 * stream + 1, fields=fields())
        for piece in pieces[:-1]:
            peer.data(2 * stream + 1, EMPTY * piece)
        peer.data(2 * stream + 1, EMPTY * pieces[-1], ends=True)
        assert status(peer.response(2 * stream + 1)) == ("OK", "")


def test_requests_in_flight_are_bounded_by_the_size_of_their_responses(served, connect, monkeypatch):
    """All their responses may come while the client does not read."""
    monkeypatch.setattr(model_stream_infer, "_MAX_EXPECTED", 1_000_000)
    peer = open_stream(connect)
    for _ in range(10):
        peer.data(1, prefixed(infer_request("held", size=100_000)))
    peer.data(1, b"", ends=True)
    # On a busy machine requests are submitted over several turns of the loop.
    served.loop.until(lambda: len(served.engine.requests) == 3)
    assert peer.is_alive()
    served.loop.turn(100)
    assert len(served.engine.requests) == 3

    def release() -> bool:
        """Answer what is held, of which there is more when a turn that was full submits the others."""
        served.engine.release()
        return len(served.engine.requests) == 10

    served.loop.until(release)
    received = b""
    while (frame := peer.read()).kind != frames.HEADERS or not frame.flags & frames.END_STREAM:
        received += frame.payload if frame.kind == frames.DATA else b""
    assert len(received) > 10 * 400_000

"""`generate` and `generate_stream` on a socket: framing, order, slow readers, clients that disconnect."""

from __future__ import annotations

import contextlib
import json
import urllib.request

import pytest
from fakes.engine import FakeModel

from naiad.core.errors import ModelError
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.response_queue import ResponseQueue
from naiad.frontends.offload.background import Background
from naiad.frontends.request_memory import RequestMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.metadata import TensorMetadata

from .conftest import Frontend
from .raw import Client, request

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
LIVE = request("/v2/health/live", method="GET")


def generate(model: str, document, *headers: str, stream: bool = False, **options) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    path = f"/v2/models/{model}/{'generate_stream' if stream else 'generate'}"
    return request(path, body, *headers, **options)


def stream(model: str, document, *headers: str, **options) -> bytes:
    return generate(model, document, *headers, stream=True, **options)


def out(value: int) -> bytes:
    return b'data: {"OUT":%d.0,"model_name":"repeat","model_version":"1"}\n\n' % value


class Paced:
    """A decoupled model that sends the test's responses when the test says."""

    def __init__(self, server) -> None:
        self._loop = server.loop
        self.sinks = []
        self.engine = server.engine
        text = (TensorMetadata(name="TEXT", datatype="BYTES", shape=(1,)),)
        model = FakeModel("paced", lambda engine, request, sink: self.sinks.append(sink), text, text, decoupled=True)
        server.engine.models["paced"] = model

    def send(self, text: str | None = None, *, error: str = "", final: bool = False, sink: int = -1) -> None:
        response = None
        if error:
            response = InferResponse("paced", 1, error=ModelError(error))
        elif text is not None:
            response = self._response(text)
        self._loop.call(self.sinks[sink].send, response, final)

    def send_all(self, *texts: str) -> None:
        """Send a response for each text within one turn of the loop."""
        self._loop.call(lambda: [self.sinks[-1].send(self._response(text), False) for text in texts])

    def _response(self, text: str) -> InferResponse:
        data = len(text).to_bytes(4, "little") + text.encode()
        return InferResponse("paced", 1, outputs=[OutputTensor("TEXT", Datatype.BYTES, (1,), data)])


def paced_event(text: str) -> bytes:
    return b'data: {"TEXT":"%b","model_name":"paced","model_version":"1"}\n\n' % text.encode()


@pytest.fixture
def paced(server):
    return Paced(server)


def test_one_response_is_answered_as_one_object(client):
    client.send(generate("identity", {"INPUT0": [1, 2], "id": "seven"}))
    answer = client.read()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json() == {"OUTPUT0": [1.0, 2.0], "id": "seven", "model_name": "identity", "model_version": "1"}


def test_a_decoupled_model_that_responds_once_has_a_plain_response(server, client):
    client.send(generate("repeat", {"IN": 1}))
    answer = client.read()
    assert (answer.status, answer.json()["OUT"]) == (200, 0.0)


@pytest.mark.parametrize("count", [0, 2, 3])
def test_any_other_number_of_responses_is_an_error_under_the_status_of_the_first(server, client, count):
    client.send(generate("repeat", {"IN": count}))
    answer = client.read()
    assert (answer.status, answer.json()) == (200, {"error": NOT_ONE})
    taken = server.loop.call(
        lambda: server.engine.confirmed_counts.get(1, 0)
    )  # when the loop's turn with the response is over
    assert taken == count, "responses that go nowhere must not hold the model back"


def test_models_error_is_answered_with_status_400(client):
    client.send(generate("failing", {"INPUT0": 1}) + stream("failing", {"INPUT0": 1}))
    answer = client.read()
    assert answer.status == 400
    assert answer.json()["error"].endswith("ValueError: no luck")
    assert client.read_head().status == 400
    (event,) = client.read_chunks()
    assert json.loads(event.removeprefix(b"data: ")) == answer.json()


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "message"),
    [
        ("unknown", b"garbage", (), 404, "Request for unknown model: 'unknown' is not found"),
        ("identity/versions/7", b"{}", (), 404, "Request for unknown model: 'identity' version 7 is not found"),
        ("unknown", b"{}", ("Content-Encoding: gzip",), 404, "Request for unknown model: 'unknown' is not found"),
        ("identity", b"{}", (), 400, "missing required input 'INPUT0' for model 'identity'"),
        ("identity", b"[1]", (), 500, "attempt to get members for non-object"),
        *(
            ("identity", b"{}", (f"Content-Encoding: {coding}",), 400, "Unsupported content-encoding, only 'identity'")
            for coding in ("gzip", "deflate", "br")
        ),
    ],
)
def test_refused_request_is_answered_as_json_in_both_kinds(client, kind, path, body, headers, status, message):
    client.send(request(f"/v2/models/{path}/{kind}", body, *headers))
    answer = client.read()
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
    assert answer.json()["error"].startswith(message)


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS"])
def test_other_verbs_than_post_are_refused(client, kind, method):
    client.send(request(f"/v2/models/repeat/{kind}", method=method), LIVE)
    answer = client.read(with_body=method != "HEAD")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert client.read().status == 200


def test_identity_is_a_coding_and_versions_may_be_named(client):
    client.send(request("/v2/models/identity/versions/1/generate", b'{"INPUT0":1}', "Content-Encoding: identity"))
    assert client.read().json()["OUTPUT0"] == 1.0


@pytest.mark.parametrize("count", [0, 1, 3, 2000])
def test_a_stream_has_each_response_as_an_event_and_the_connection_is_kept(server, client, count):
    client.send(stream("repeat", {"IN": count}))
    head = client.read_head()
    assert (head.status, head.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    assert head.headers["Transfer-Encoding"] == "chunked"
    assert head.headers["X-Accel-Buffering"] == "no"
    assert client.read_chunks() == [out(n) for n in range(count)]
    client.send(LIVE)
    assert client.read().status == 200
    # Polled: the client may have all events before the server has the request that it confirms them to.
    assert server.engine.confirmed_counts.get(1, 0) == count


def test_responses_of_one_turn_leave_together_but_for_the_first(client, paced, monkeypatch):
    """One system call for each turn of the loop, for any number of responses. No event waits for the next turn."""
    written = []
    write = ResponseQueue.write
    monkeypatch.setattr(ResponseQueue, "write", lambda self, part: (written.append(bytes(part)), write(self, part))[1])
    client.send(stream("paced", {"TEXT": "x"}))
    wait_for_sinks(paced, 1)
    paced.send_all("one", "two", "three")
    assert client.read_head().status == 200
    assert [client.read_chunk() for _ in range(3)] == [paced_event(text) for text in ("one", "two", "three")]
    paced.send("four")
    assert client.read_chunk() == paced_event("four")
    assert [part.count(b"data: ") for part in written] == [1, 2, 1]
    large = "x" * (1 << 16)
    paced.send_all("five", large, "six", large)
    assert [client.read_chunk() for _ in range(4)] == [paced_event(text) for text in ("five", large, "six", large)]
    assert [part.count(b"data: ") for part in written[3:]] == [2, 2], "what fills a packet many times waits for no more"
    paced.send(final=True)
    assert client.read_chunk() == b""


def test_real_client_reads_a_stream(server):
    url = f"http://127.0.0.1:{server.port}/v2/models/repeat/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, b'{"IN": 3}'), timeout=20) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.read() == out(0) + out(1) + out(2)


def test_model_that_is_not_decoupled_streams_one_event(client):
    client.send(stream("identity", {"INPUT0": 1}))
    assert client.read_head().status == 200
    assert client.read_chunks() == [b'data: {"OUTPUT0":1.0,"model_name":"identity","model_version":"1"}\n\n']


def test_an_event_is_sent_before_the_next_response_exists(client, paced):
    client.send(stream("paced", {"TEXT": "x"}))
    wait_for_sinks(paced, 1)
    for text in ("one", "two"):
        paced.send(text)
        if text == "one":
            assert client.read_head().status == 200
        assert client.read_chunk() == paced_event(text)
    paced.send(final=True)
    assert client.read_chunk() == b""


def test_error_in_mid_stream_is_an_event_after_which_others_may_come(client, paced):
    client.send(stream("paced", {"TEXT": "x"}))
    wait_for_sinks(paced, 1)
    paced.send("one")
    paced.send(error='it "broke"\nhere')
    paced.send("two", final=True)
    assert client.read_head().status == 200
    error = b'data: {"error":"it \\"broke\\"\\nhere"}\n\n'
    assert client.read_chunks() == [paced_event("one"), error, paced_event("two")]


def test_first_response_decides_the_status_of_a_stream(client, paced):
    client.send(stream("paced", {"TEXT": "x"}))
    wait_for_sinks(paced, 1)
    paced.send(error="no")
    paced.send("two", final=True)
    assert client.read_head().status == 400
    assert client.read_chunks() == [b'data: {"error":"no"}\n\n', paced_event("two")]


def test_requests_behind_a_stream_wait_for_its_end(server, client, paced):
    client.send(stream("paced", {"TEXT": "x"}) + generate("identity", {"INPUT0": 5}) + LIVE)
    wait_for_sinks(paced, 1)
    paced.send("one")
    assert client.read_head().status == 200
    assert client.read_chunk() == paced_event("one")
    assert len(server.engine.requests) == 1
    paced.send(final=True)
    assert client.read_chunk() == b""
    assert client.read().json()["OUTPUT0"] == 5.0
    assert client.read().status == 200


@pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",)], ids=["plain", "keep-alive"])
def test_http_1_0_client_gets_a_stream_without_chunks_that_ends_with_the_connection(client, headers):
    client.send(stream("repeat", {"IN": 2}, *headers, version="1.0"))
    head = client.read_head()
    assert (head.status, head.headers["Transfer-Encoding"], head.headers["Connection"]) == (200, None, "close")
    assert client.incoming.read() == out(0) + out(1)


def test_slow_reader_holds_its_stream_back_and_loses_nothing(server, client, paced):
    """Events that the client does not read are queued, and only written events are confirmed as sent."""
    client.send(stream("paced", {"TEXT": "x"}) + LIVE)
    wait_for_sinks(paced, 1)
    texts = [f"{n}" + "x" * (1 << 18) for n in range(100)]  # more than the kernel keeps for a connection
    for text in texts:
        paced.send(text)
    assert 0 < server.engine.confirmed_counts[1] < len(texts)
    paced.send(final=True)
    assert server.engine.confirmed_counts[1] < len(texts)
    assert client.read_head().status == 200
    assert client.read_chunks() == [paced_event(text) for text in texts]
    server.until(lambda engine: engine.confirmed_counts[1] == len(texts))
    assert client.read().status == 200
    assert server.engine.cancelled == []


def test_client_that_leaves_a_stream_cancels_it_and_holds_nothing_back(server, paced):
    with contextlib.closing(Client(server.port)) as leaving:
        leaving.send(stream("paced", {"TEXT": "x"}) + generate("identity", {"INPUT0": 5}))
        wait_for_sinks(paced, 1)
        for _ in range(100):
            paced.send("x" * (1 << 18))
        assert server.engine.confirmed_counts[1] < 100
    server.until(lambda engine: engine.cancelled == [1])
    server.until(lambda engine: engine.confirmed_counts[1] == 100)
    paced.send("late")
    paced.send(final=True)
    assert server.engine.confirmed_counts[1] == 101
    assert len(server.engine.requests) == 1, "what was sent ahead is dropped"


def test_a_response_behind_the_last_one_does_not_answer_the_next_request(client, paced):
    client.send(stream("paced", {"TEXT": "x"}) + stream("paced", {"TEXT": "y"}))
    wait_for_sinks(paced, 1)
    paced.send(final=True)
    wait_for_sinks(paced, 2)
    paced.send("stray", sink=0)
    paced.send("right", final=True, sink=1)
    client.read_head()
    assert client.read_chunks() == []
    client.read_head()
    assert client.read_chunks() == [paced_event("right")]


def test_infer_still_refuses_decoupled_models(client):
    client.send(request("/v2/models/repeat/infer", b"{}"))
    assert client.read().status == 501


def wait_for_sinks(paced: Paced, count: int) -> None:
    paced._loop.until(lambda: len(paced.sinks) == count)


@pytest.fixture
def small(loop):
    """A frontend whose requests may hold 1 MiB."""
    background = Background()
    frontend = Frontend(loop, extensions=Extensions(memory=RequestMemory(1 << 20), background=background))
    yield frontend
    loop.run(frontend.frontend.stop(0))
    loop.run(background.close())


def test_the_response_that_is_kept_counts_until_it_is_not_needed(small):
    paced, budget = Paced(small), small.memory.budget
    with contextlib.closing(Client(small.port)) as client:
        client.send(generate("paced", {"TEXT": "x"}))
        wait_for_sinks(paced, 1)
        paced.send("x" * 100_000)
        small.until(lambda _: budget.in_use > 100_000)
        paced.send("more")
        assert budget.in_use == 0, "there is no response for more than one"
        paced.send(final=True)
        assert client.read().status == 200

        client.send(generate("paced", {"TEXT": "x"}))
        wait_for_sinks(paced, 2)
        paced.send("x" * (1 << 20))
        paced.send("late")
        assert small.engine.confirmed_counts == {1: 2, 2: 2}
        answer = client.read()
        assert answer.status == 503
        assert answer.json()["error"] == (
            "cannot collect the response: it exceeds the 1048576 bytes that all requests in flight may use together; "
            "ask for a shorter one or for a stream, or set --memory-limit-requests"
        )

        client.send(generate("paced", {"TEXT": "x"}))
        wait_for_sinks(paced, 3)
        paced.send("x" * 100_000)
        small.until(lambda _: budget.in_use > 100_000)
    small.until(lambda _: budget.in_use == 0)

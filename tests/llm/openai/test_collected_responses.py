"""What is collected of a response until it is whole: counted, bounded, freed when nobody reads it, and never joined."""

from __future__ import annotations

import json
import socket

import pytest
from support.waiting import until

from naiad.frontends.request_budget import COLLECTING, RequestBudget
from naiad_llm.openai.json_parts import GrownJson, dump_parts, dumps

from .fake_models import said, served

MIB = 1 << 20
CHAT = [{"role": "user", "content": "hello"}]
ENDPOINTS = {
    "completions": {"prompt": "x"},
    "chat/completions": {"messages": CHAT},
    "responses": {"input": "x"},
    "messages": {"messages": CHAT, "max_tokens": 1 << 20},
}
PIECE = "x" * 100_000
EXCEEDED = (
    "cannot collect the response: it exceeds the 2097152 bytes that all requests in flight may use together; ask for a "
    "shorter one or for a stream, or set --memory-limit-requests"
)


class Other:
    """Another request that holds memory."""

    def __init__(self, budget: RequestBudget, size: int) -> None:
        self.charge = budget.open(self)
        self.charge.add(size)
        self.charge.complete()

    def resume_receiving(self) -> None:
        raise AssertionError

    refuse = resume_receiving  # type: ignore[assignment] - is not called either


def asking(api, path):
    """A connection on which a request was sent."""
    body = json.dumps({"model": "fake", **ENDPOINTS[path]})
    client = socket.create_connection(("127.0.0.1", api.port))
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall((head + body).encode())
    return client


def text_of(path, document):
    if path == "completions":
        return document["choices"][0]["text"]
    if path == "chat/completions":
        return document["choices"][0]["message"]["content"]
    if path == "responses":
        return document["output"][0]["content"][0]["text"]
    return document["content"][0]["text"]


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_response_that_exceeds_the_memory_of_requests_is_an_error_and_its_model_is_cancelled(path):
    def talk(engine, request, sink):
        for _ in range(30):
            sink.send(said(PIECE), False)
        sink.send(None, True)

    budget = RequestBudget(2 * MIB)
    with served(talk, budget=budget) as api:
        got = api.ask(path, **ENDPOINTS[path])

        assert (got.status, got.json()["error"]["message"]) == (503, EXCEEDED)
        counts = api.loop.call(
            lambda: (budget.in_use, budget.refused, api.engine.cancelled, api.engine.confirmed_counts)
        )
        assert counts == (0, 1, [1], {1: 30})


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_response_within_it_is_whole_and_counts_nothing_afterwards(path):
    pieces = [f'{index} "\u20ac\n\u001b {PIECE}' for index in range(15)]

    def talk(engine, request, sink):
        for piece in pieces:
            sink.send(said(piece), False)
        sink.send(None, True)

    budget = RequestBudget(2 * MIB)
    with served(talk, budget=budget) as api:
        got = api.ask(path, **ENDPOINTS[path])

        assert got.status == 200
        assert text_of(path, got.json()) == "".join(pieces)
        assert api.loop.call(lambda: (budget.in_use, budget.take_peak() > 15 * 100_000)) == (0, True)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_model_is_paused_while_others_hold_the_memory(path):
    kept = []

    def talk(engine, request, sink):
        kept.append(sink)
        for _ in range(5):
            sink.send(said(PIECE), False)

    budget = RequestBudget(2 * MIB)
    with served(talk, budget=budget) as api:
        other = api.loop.call(lambda: Other(budget, 3 * MIB // 2))
        with asking(api, path) as client:
            until(lambda: api.loop.call(lambda: budget.stopped_count) == 1, "the model is paused")
            assert api.loop.call(lambda: api.engine.confirmed_counts) == {1: 2}

            api.loop.call(other.charge.release)
            assert api.loop.call(lambda: api.engine.confirmed_counts) == {1: 5}

            api.loop.call(lambda: kept[0].send(None, True))
            assert client.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("path", ENDPOINTS)
def test_what_was_collected_is_freed_when_the_client_leaves(path):
    kept = []

    def talk(engine, request, sink):
        kept.append(sink)
        sink.send(said(PIECE), False)

    budget = RequestBudget(2 * MIB)
    with served(talk, budget=budget, stored_responses=10, stored_bytes=MIB) as api:
        with asking(api, path):
            until(lambda: api.loop.call(lambda: budget.in_use) >= 100_000, "it is collected")
        until(lambda: api.loop.call(lambda: budget.in_use) == 0, "it is freed")

        api.loop.call(lambda: [kept[0].send(said(PIECE), False), kept[0].send(None, True)])
        assert api.loop.call(lambda: (budget.in_use, api.engine.cancelled, api.engine.confirmed_counts)) == (
            0,
            [1],
            {1: 2},
        )


@pytest.mark.parametrize("path", ["responses", "messages"])
def test_the_answer_that_the_last_events_of_a_stream_repeat_counts_too(path):
    def talk(engine, request, sink):
        for _ in range(30):
            sink.send(said(PIECE), False)
        sink.send(None, True)

    budget = RequestBudget(2 * MIB)
    with served(talk, budget=budget) as api:
        got = api.ask(path, **ENDPOINTS[path], stream=True)

        assert got.status == 200
        assert EXCEEDED in got.body[-1000:].decode() if path == "messages" else EXCEEDED in got.body.decode()
        assert api.loop.call(lambda: (budget.in_use, api.engine.cancelled)) == (0, [1])


def test_a_long_answer_is_not_stored():
    with served(lambda _, __, sink: sink.send(said(PIECE), True), stored_responses=9, stored_bytes=100_000) as api:
        found = api.ask("responses", input="x").json()

        assert api.request("GET", f"/v1/responses/{found['id']}").status == 404


def test_growing_values_are_written_as_plain_ones():
    text, values = GrownJson("a\0b"), GrownJson([])
    for piece in ("\u20ac", "", "\n" * 70_000, "end"):
        text.add(piece)
    for each in ([1, {"a": None}], [], ["x"]):
        values.add(each)
    plain = {"text": "a\0b\u20ac" + "\n" * 70_000 + "end", "list": [1, {"a": None}, "x"], "empty": "", "none": []}

    document = {"text": text, "list": values, "empty": GrownJson(""), "none": GrownJson([])}

    assert json.loads(dumps(document)) == plain
    assert dumps([document, document]) == b"[%b,%b]" % (dumps(document), dumps(document))
    assert text.size == len(dumps(text)) - 2
    assert len(dump_parts(document)) > 5
    assert json.loads(dumps(GrownJson("<").joined(text))) == "<" + plain["text"]
    assert json.loads(dumps(GrownJson([0]).joined(values))) == [0, *plain["list"]]
    assert json.loads(dumps(GrownJson([0]).joined(GrownJson([])))) == [0]
    assert json.loads(dumps(GrownJson([]).joined(values))) == plain["list"]


def test_other_objects_are_no_json():
    with pytest.raises(TypeError):
        dumps({"a": COLLECTING.too_long})


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_response_that_is_not_read_counts_once(path):
    """What was collected of it is no reason to refuse it."""

    def talk(engine, request, sink):
        for _ in range(100):
            sink.send(said(PIECE), False)
        sink.send(None, True)

    budget = RequestBudget(16 * MIB)
    with served(talk, budget=budget) as api, asking(api, path) as first, asking(api, path) as second:
        assert first.recv(15) == second.recv(15) == b"HTTP/1.1 200 OK"
        until(lambda: api.loop.call(lambda: budget.unread.size) > 20_000_000, "both to wait for their clients")
        assert api.loop.call(lambda: budget.in_use) < 20_100_000
        assert api.loop.call(lambda: budget.dropped) == {}
        with asking(api, path) as third:
            assert third.recv(12) == b"HTTP/1.1 503"
    until(lambda: not budget.in_use, "nothing to count any more")

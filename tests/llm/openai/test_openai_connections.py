"""Streams on real connections: old clients, clients that ask on, read slowly, or leave."""

from __future__ import annotations

import json
import socket
from contextlib import closing

from naiad.core.errors import NotReadyError

from .fake_models import given, said, served

HELD = "held"


class Telling:
    """A model that says what it is told to by the test, for as long as that likes."""

    def __init__(self):
        self.sinks = []

    def answer(self, _, request, sink):
        if given(request) == HELD:
            self.sinks.append(sink)
            sink.send(said("begun "), False)
        else:
            sink.send(said(given(request)), True)


def question(prompt, version="1.1", **fields):
    body = json.dumps({"model": "fake", "prompt": prompt, **fields}).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connected(api):
    return closing(socket.create_connection(("127.0.0.1", api.port), timeout=60))


def read_until(connection, end):
    data = b""
    while end not in data:
        part = connection.recv(1 << 16)
        assert part, data
        data += part
    return data


def test_an_old_client_gets_its_stream_without_chunks_and_the_end_of_the_connection():
    with served(Telling().answer) as api, connected(api) as connection:
        connection.sendall(question("x", version="1.0", stream=True))
        data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        head, _, body = data.partition(b"\r\n\r\n")
        assert b"Connection: close" in head
        assert b"chunked" not in head
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")


def test_a_request_sent_behind_a_stream_is_answered_after_the_stream():
    model = Telling()
    with served(model.answer) as api, connected(api) as connection:
        connection.sendall(question(HELD, stream=True) + question("next"))
        assert b"next" not in read_until(connection, b"begun ")
        api.loop.call(model.sinks[0].send, said("ended"), True)
        rest = read_until(connection, b'"next"')
        assert rest.index(b"[DONE]") < rest.index(b"HTTP/1.1 200 OK") < rest.index(b'"next"')
        assert api.loop.call(lambda: api.engine.confirmed_counts) == {1: 2, 2: 1}


def test_a_client_that_left_has_its_inferences_cancelled_and_responses_counted_all_the_same():
    model = Telling()
    with served(model.answer) as api:
        with connected(api) as connection:
            connection.sendall(question([HELD, HELD], stream=True))
            read_until(connection, b"begun ")
        api.loop.until(lambda: api.engine.cancelled == [1, 2])
        for sink in model.sinks:
            api.loop.call(sink.send, said("nobody reads this"), False)
            api.loop.call(sink.send, None, True)
        assert api.engine.confirmed_counts == {1: 2, 2: 2}


def test_responses_wait_for_a_client_that_does_not_read_and_count_once_it_does():
    model = Telling()
    with served(model.answer) as api, connected(api) as connection:
        connection.sendall(question(HELD, stream=True))
        api.loop.until(lambda: model.sinks)
        for _ in range(40):
            api.loop.call(model.sinks[0].send, said("long " * (1 << 18)), False)
        api.loop.call(model.sinks[0].send, None, True)
        assert api.engine.confirmed_counts[1] < 41
        read_until_end(connection)
        api.loop.until(lambda: api.engine.confirmed_counts[1] == 41)


def read_until_end(connection):
    tail = b""
    while not tail.endswith(b"0\r\n\r\n"):
        part = connection.recv(1 << 20)
        assert part
        tail = (tail + part)[-16:]


def test_a_stream_that_is_refused_in_its_second_prompt_ends_with_the_error():
    def refuse(engine, request, sink):
        if given(request) == "b":
            raise NotReadyError("the queue is full")
        sink.send(said("first"), False)

    with served(refuse) as api:
        got = api.ask("completions", prompt=["a", "b"], stream=True)
        lines = [line for line in got.body.decode().split("\n\n") if line]
        assert (got.status, len(lines)) == (200, 3)
        assert '"the queue is full"' in lines[1]
        assert (lines[2], api.loop.call(lambda: api.engine.cancelled)) == ("data: [DONE]", [1])

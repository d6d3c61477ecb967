"""Requests that are too long for the event loop: the same responses and errors as for short ones."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from naiad.frontends.kserve_http.long_requests import LONG_JSON

from .fake_models import Api, given, said, served

LONG = "word " * (LONG_JSON // 4)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    def answer(_, request, sink):
        inputs = {tensor.name for tensor in request.inputs}
        name = next(name for name in ("messages", "embedding_request", "text_input") if name in inputs)
        text = given(request, name)
        sink.send(said("[0.5]" if name == "embedding_request" else f"{name} {len(text)} {text[-30:]}"), True)

    with served(answer) as each:
        yield each


def test_long_prompts_and_chats_reach_the_model(api: Api) -> None:
    reply = api.ask("completions", prompt=LONG + "end")
    assert reply.json()["choices"][0]["text"] == f"text_input {len(LONG) + 3} {(LONG + 'end')[-30:]}"
    messages = [{"role": "user", "content": LONG}]
    reply = api.ask("chat/completions", messages=messages)
    assert reply.json()["choices"][0]["message"]["content"].startswith("messages ")


def test_long_inputs_of_embeddings_reach_the_model(api: Api) -> None:
    assert api.ask("embeddings", input=LONG).json()["data"][0]["embedding"] == [0.5]
    assert json.loads(given(api.engine.requests[-1], "embedding_request")) == {"input": LONG}
    tokens = [7] * 200_000
    assert api.ask("embeddings", input=tokens, dimensions=3).status == 200
    document = json.loads(given(api.engine.requests[-1], "embedding_request"))
    assert document == {"input": tokens, "pooling_params": {"dimensions": 3}}


def test_errors_of_long_requests_are_those_of_short_ones(api: Api) -> None:
    for text in ("a", LONG):
        reply = api.ask("completions", prompt=text, temprature=1)
        assert (reply.status, reply.json()["error"]["param"]) == (400, "temprature")
        reply = api.ask("embeddings", input=[text, 1])
        assert (reply.status, reply.json()["error"]["param"]) == (400, "input")
        reply = api.ask("completions", prompt=text, model="nobody")
        assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")
    reply = api.request("POST", "/v1/completions", LONG)
    assert reply.json()["error"]["message"].startswith("We could not parse the JSON body of your request")


@pytest.mark.parametrize("value", [[1] * 200_000, [[]] * 200_000, {str(index): 1 for index in range(200_000)}])
def test_number_of_values_is_limited(api: Api, value: object) -> None:
    reply = api.ask("chat/completions", messages=[{"role": "user", "content": "a", "x": value}])
    assert reply.status == 400
    assert reply.json()["error"]["message"] == "The request has more than 100000 values in its objects and arrays"


def test_nesting_and_objects_are_limited(api: Api) -> None:
    reply = api.request("POST", "/v1/completions", "[" * LONG_JSON * 2)
    assert reply.json()["error"]["message"] == "JSON nesting depth exceeds maximum allowed limit (100)"
    reply = api.request("POST", "/v1/completions", "[" + "{}," * 200_000)
    assert reply.json()["error"]["message"].startswith("cannot use the request JSON: it has more than 100000 objects")

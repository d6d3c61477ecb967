"""Answers whatever a model sends, and however often: each response counts once, each connection gets one answer."""

from __future__ import annotations

import json

import pytest

from naiad.core.errors import NotReadyError
from naiad_llm.openai.embeddings import embedding_body
from naiad_llm.openai.logprobs import SampledTokenFinder, for_chat

from .fake_models import given, said, served

CHAT = [{"role": "user", "content": "hello"}]


def events(got):
    return [line[len("data: ") :] for line in got.body.decode().splitlines() if line]


@pytest.mark.parametrize("stream", [False, True])
def test_responses_after_a_failure_are_counted_too(stream):
    """A model that does not notice that it was cancelled must not be held back for ever."""

    def go_on(engine, request, sink):
        sink.send(said("one", "too many"), False)
        sink.send(said("two"), False)
        sink.send(said("three"), True)

    with served(go_on) as api:
        got = api.ask("completions", prompt="x", stream=stream)
        assert (got.status, got.json()["error"]["type"]) == (500, "server_error")
        assert "Expected to find 1 string" in got.json()["error"]["message"]
        assert api.loop.call(lambda: (api.engine.cancelled, api.engine.confirmed_counts)) == ([1], {1: 3})


def test_responses_with_more_vectors_than_one_are_counted_and_the_first_is_the_answer():
    def twice(engine, request, sink):
        sink.send(said("[1.0]"), False)
        sink.send(said("[2.0]"), False)
        sink.send(None, True)

    with served(twice) as api:
        got = api.ask("embeddings", input="x")
        assert got.json()["data"] == [{"object": "embedding", "index": 0, "embedding": [1.0]}]
        assert api.loop.call(lambda: api.engine.confirmed_counts) == {1: 2}


def test_many_vectors_are_encoded_between_other_work():
    texts = ["[" + ",".join(["0.5"] * 1000) + "]"] * 50
    with served(lambda _, __, sink: sink.send(said(*texts), True)) as api:
        steps = embedding_body({"text_output": said(*texts).outputs[0]}, {"model": "fake"})
        assert sum(1 for _ in steps) == len(texts), "a step has more than one vector"
        got = api.ask("embeddings", input="x")
        assert [each["index"] for each in got.json()["data"]] == list(range(50))
        assert all(each["embedding"] == [0.5] * 1000 for each in got.json()["data"])
        assert got.json()["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


def test_an_invalid_vector_among_many_is_an_error():
    texts = ["[" + ",".join(["0.5"] * 1000) + "]"] * 50 + ["7"]
    with served(lambda _, __, sink: sink.send(said(*texts), True)) as api:
        got = api.ask("embeddings", input="x")
        assert got.status == 500
        assert got.json()["error"]["message"].startswith("The model did not return a vector: ")


@pytest.mark.parametrize("text", ['[{"a": 1}]', "[[1.0], [2.0]]", "7", "[", "null", '["a"]'])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_an_invalid_vector_of_the_model_is_an_error(text, encoding):
    with served(lambda _, __, sink: sink.send(said(text), True)) as api:
        got = api.ask("embeddings", input="x", encoding_format=encoding)
        assert got.status == 500
        assert got.json()["error"]["message"].startswith("The model did not return a vector: ")


def test_the_answers_of_all_prompts_may_come_before_their_requests_are_known():
    with served(lambda _, request, sink: sink.send(said(given(request).upper()), True)) as api:
        got = api.ask("completions", prompt=["a", "b", "c"])
        assert [choice["text"] for choice in got.json()["choices"]] == ["A", "B", "C"]
        assert api.loop.call(lambda: api.engine.confirmed_counts) == {1: 1, 2: 1, 3: 1}


def test_prompts_behind_one_that_failed_at_once_are_not_submitted():
    with served(lambda _, __, sink: sink.send(said(error="no luck"), True)) as api:
        assert api.ask("completions", prompt=["a", "b", "c"]).json()["error"]["message"] == "no luck"
        assert len(api.loop.call(lambda: api.engine.requests)) == 1


def test_a_refused_prompt_cancels_those_before_it():
    def refuse(engine, request, sink):
        if given(request) == "b":
            raise NotReadyError("the queue is full")

    with served(refuse) as api:
        got = api.ask("completions", prompt=["a", "b", "c"])
        assert (got.status, got.json()["error"]["message"]) == (503, "the queue is full")
        assert api.loop.call(lambda: api.engine.cancelled) == [1]


def test_an_internal_error_has_the_form_of_openai(caplog):
    def break_down(engine, request, sink):
        raise RuntimeError("nobody expected this")

    with served(break_down) as api:
        for path, document in (("completions", {"prompt": "x"}), ("embeddings", {"input": "x"})):
            got = api.ask(path, **document)
            assert (got.status, got.json()["error"]["type"]) == (500, "server_error")
            assert "internal error" in got.json()["error"]["message"]
    assert "nobody expected this" in caplog.text


def test_probabilities_of_zero_and_of_one_are_numbers_and_in_order():
    likely = {
        "1": {"logprob": float("-inf"), "rank": 9, "decoded_token": "never"},
        "2": {"logprob": 0.0, "rank": 1, "decoded_token": "surely"},
    }
    alternatives = json.dumps([likely])  # as Python writes it: -Infinity
    assert "-Infinity" in alternatives
    with served(lambda _, __, sink: sink.send(said("surely", logprobs=[alternatives]), True)) as api:
        got = api.ask("chat/completions", messages=CHAT, logprobs=True, top_logprobs=2)
        token = got.json()["choices"][0]["logprobs"]["content"][0]
        assert (token["token"], token["logprob"]) == ("surely", 0.0)
        assert [(one["token"], one["logprob"]) for one in token["top_logprobs"]] == [("surely", 0), ("never", -9999)]
    odd = [{"1": {"logprob": value, "decoded_token": "x"}} for value in (float("inf"), float("nan"))]
    assert [token["logprob"] for token in for_chat(SampledTokenFinder(), odd, 0)] == [9999.0, -9999.0]


@pytest.mark.parametrize("message", ["[]", '"text"', "3"])
def test_a_message_that_is_not_an_object_is_an_error_of_the_model(message):
    with served(lambda _, __, sink: sink.send(said("x", message=[message]), True)) as api:
        got = api.ask("chat/completions", messages=CHAT)
        assert (got.status, "that is not a JSON object" in got.json()["error"]["message"]) == (500, True)


def test_calls_of_tools_may_have_no_index():
    call = {"index": None, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = json.dumps({"tool_calls": [call]})
    with served(lambda _, __, sink: sink.send(said("", message=[message]), True)) as api:
        got = api.ask("chat/completions", messages=CHAT).json()["choices"][0]["message"]
        assert (got["content"], [made["id"] for made in got["tool_calls"]]) == (None, ["c"])


def test_a_body_that_is_nested_too_deeply_is_refused():
    deep = "x"
    for _ in range(300):
        deep = {"a": deep}
    with served(lambda _, __, sink: sink.send(said("x"), True)) as api:
        for path, fields in (
            ("chat/completions", {"messages": CHAT, "chat_template_kwargs": deep}),
            ("completions", {"prompt": "x", "structured_outputs": deep}),
        ):
            got = api.ask(path, **fields)
            assert (got.status, got.json()["error"]["type"]) == (400, "invalid_request_error")
            assert "cannot send the JSON body of the request to the model" in got.json()["error"]["message"]
        assert api.ask("completions", prompt=["x"] * 3000).json()["error"]["message"].startswith("`prompt` must hold")


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_surrogate_pair_in_a_models_text_becomes_the_replacement_character(stream):
    """Python's `json.dumps` writes it without a word, and no UTF-8 holds it: a tokenizer cuts where it will."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\udc00"}'}}
    message = json.dumps({"content": "a \ud83d b", "tool_calls": [call]})
    entry = {"logprob": -0.5, "rank": 1, "decoded_token": "a \ud83d"}

    def answer(engine, request, sink):
        sink.send(said("a \ud83d b", message=[message], logprobs=[json.dumps([{"7": entry}])]), False)
        sink.send(None, True)

    with served(answer) as api:
        got = api.ask("chat/completions", messages=CHAT, stream=stream, logprobs=True)
        assert got.status == 200
        documents = [json.loads(text) for text in events(got)[:-1]] if stream else [got.json()]
        part = "delta" if stream else "message"
        found = [choice for document in documents for choice in document["choices"]]
        if stream:
            assert events(got)[-1] == "[DONE]"
        assert "a \ufffd b" in {
            choice[part].get("content", "").replace("\ufffd\ufffd\ufffd", "\ufffd") for choice in found
        }
        calls = [made for choice in found for made in choice[part].get("tool_calls", [])]
        assert [made["function"]["arguments"] for made in calls] == ['{"a": "\ufffd"}']
        tokens = [token for choice in found if choice["logprobs"] for token in choice["logprobs"]["content"]]
        assert [token["token"] for token in tokens] == ["a \ufffd"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_with_half_a_surrogate_pair_is_returned(stream):
    with served(lambda _engine, _request, sink: sink.send(said(error="no \ud83d"), True)) as api:
        got = api.ask("completions", prompt="x", stream=stream)
        assert (got.status, got.json()["error"]["message"]) == (500, "no ?")

"""OpenAI's own client and a real engine: what programs written for that API get from a model of this backend."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from support.server import ServerProcess, wait_until

from .asking import Background, metric

PROMPT = "hello the other world"
TALK: list[Any] = [{"role": "user", "content": "hello the other world"}]
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["age", "ok"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
STOP: Any = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}
FOREVER: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def complete(client: OpenAI, **options: Any) -> Any:
    given = {"model": "llama", "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **options}
    return client.completions.create(**given)


def talk(client: OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "llama", "messages": TALK, "temperature": 0, **options})


def test_the_models_are_listed(client: OpenAI):
    assert {"llama", "vectors", "adapted", "fake"} <= {model.id for model in client.models.list()}


def test_a_chat_answers_in_the_models_own_form(client: OpenAI):
    answer = talk(client, max_tokens=6, extra_body={"ignore_eos": True})
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 6
    form = "<|user|>hello the other world<|end|><|assistant|>"
    same = complete(client, prompt=form, max_tokens=6, extra_body={"ignore_eos": True})
    assert same.choices[0].text == choice.message.content
    assert same.usage.prompt_tokens == answer.usage.prompt_tokens


def test_a_streamed_chat_joins_to_the_whole_and_ends_with_its_usage(client: OpenAI):
    whole = talk(client, max_tokens=20)
    chunks = list(talk(client, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    reasons = [part.choices[0].finish_reason for part in parts]
    assert reasons == [None] * (len(parts) - 1) + [whole.choices[0].finish_reason]
    assert last.choices == []
    assert last.usage == whole.usage
    assert all(part.usage is None for part in parts)
    assert len(parts) > 10  # as it is written, not at the end


def test_a_streamed_completion_joins_to_the_whole(client: OpenAI):
    whole = complete(client, max_tokens=20)
    parts = list(complete(client, max_tokens=20, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_several_choices_and_several_prompts_have_numbers(client: OpenAI):
    answer = complete(client, prompt=[PROMPT, "the"], n=2, max_tokens=5, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == 20
    streamed = dict.fromkeys(range(4), "")
    for part in complete(
        client, prompt=[PROMPT, "the"], n=2, max_tokens=5, stream=True, extra_body={"ignore_eos": True}
    ):
        for choice in part.choices:
            streamed[choice.index] += choice.text
    assert all(streamed.values())


def test_choices_of_a_chat_are_streamed_side_by_side(client: OpenAI):
    contents = dict.fromkeys(range(3), "")
    reasons = {}
    for part in talk(client, n=3, max_tokens=8, temperature=1.2, seed=3, stream=True):
        for choice in part.choices:
            contents[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    assert set(reasons) == {0, 1, 2}
    assert len(set(contents.values())) > 1


def test_stop_words_end_the_text_before_them(client: OpenAI):
    text = complete(client, max_tokens=40, extra_body={"ignore_eos": True}).choices[0].text
    stop = re.findall(r"[!-~]{2,}", text)[2]
    choice = complete(client, max_tokens=40, stop=[stop, "never said"], extra_body={"ignore_eos": True}).choices[0]
    assert choice.finish_reason == "stop"
    assert stop not in choice.text
    assert text.startswith(choice.text)


def test_the_same_seed_gives_the_same_text(client: OpenAI):
    texts = [
        talk(client, max_tokens=20, temperature=1.5, seed=seed, extra_body={"ignore_eos": True})
        .choices[0]
        .message.content
        for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_logprobs_of_a_completion_join_to_its_text(client: OpenAI):
    choice = complete(client, max_tokens=10, logprobs=2).choices[0]
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset)
    assert all(value <= 0 for value in told.token_logprobs)
    assert told.text_offset == [len("".join(told.tokens[:count])) for count in range(len(told.tokens))]
    assert all(1 <= len(top) <= 3 for top in told.top_logprobs)  # pieces of characters have one name together
    assert any(len(top) > 1 for top in told.top_logprobs)
    # Greedy: what was taken is the most likely.
    for token, value, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == value == max(top.values())


def test_logprobs_of_a_streamed_chat_join_to_its_text(client: OpenAI):
    tokens, text = [], ""
    for part in talk(client, max_tokens=12, logprobs=True, top_logprobs=3, stream=True):
        choice = part.choices[0]
        text += choice.delta.content or ""
        tokens += choice.logprobs.content if choice.logprobs else []
    assert "".join(token.token for token in tokens) == text
    assert all(len(token.top_logprobs) == 3 for token in tokens)
    # Greedy: what was taken is the most likely.
    assert all(token.logprob == max(one.logprob for one in token.top_logprobs) for token in tokens)


def test_answers_follow_the_schema_of_response_format(client: OpenAI):
    structure: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    given = {"max_tokens": 400, "temperature": 0.5, "seed": 1, "response_format": structure}
    answer = talk(client, **given).choices[0]
    assert set(json.loads(answer.message.content)) == {"age", "ok"}
    assert answer.finish_reason == "stop"
    parts = talk(client, **given, stream=True)
    assert set(json.loads("".join(part.choices[0].delta.content or "" for part in parts))) == {"age", "ok"}


def test_answers_of_a_schema_go_on_behind_pieces_that_are_no_characters(client: OpenAI):
    """A tiny model says many of them, a real one some."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    structure: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    given = {"max_tokens": 300, "temperature": 0.5, "response_format": structure}
    reasons = [talk(client, **given, seed=seed).choices[0].finish_reason for seed in range(5)]
    assert set(reasons) <= {"stop", "length"}


def test_a_named_tool_is_called_with_arguments_of_its_schema(client: OpenAI):
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = talk(client, tools=[WEATHER, STOP], tool_choice=choice, max_tokens=400, temperature=0.5, seed=1).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"age", "ok"}
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None


def test_calls_of_tools_are_streamed_in_parts(client: OpenAI):
    given = {"tools": [WEATHER, STOP], "tool_choice": "required", "max_tokens": 400, "temperature": 0.5, "seed": 1}
    names, arguments, reasons = [], "", []
    for part in talk(client, **given, stream=True):
        choice = part.choices[0]
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            assert call.index == 0
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
    assert names in (["weather"], ["stop"])
    assert isinstance(json.loads(arguments), dict)
    assert reasons[-1] == "tool_calls"


def test_each_part_of_a_streamed_call_has_its_number_and_only_the_first_its_name(client: OpenAI):
    choice = {"type": "function", "function": {"name": "weather"}}
    parts = talk(client, tools=[WEATHER], tool_choice=choice, max_tokens=400, temperature=0.5, seed=1, stream=True)
    calls = [call for part in parts for call in part.choices[0].delta.tool_calls or ()]
    assert len(calls) > 2
    assert {call.index for call in calls} == {0}
    assert calls[0].function.name == "weather"
    assert calls[0].id.startswith("call_")
    assert all(call.id is None and call.function.name is None for call in calls[1:])
    assert set(json.loads("".join(call.function.arguments for call in calls))) == {"age", "ok"}


def test_tools_may_be_forbidden(client: OpenAI):
    answer = talk(client, tools=[WEATHER], tool_choice="none", max_tokens=10).choices[0]
    assert answer.message.tool_calls is None
    assert answer.finish_reason in {"length", "stop"}


def test_vectors_are_the_same_in_both_encodings(client: OpenAI):
    given = {"model": "vectors", "input": ["hello the world", "other"]}
    plain = client.embeddings.create(**given, encoding_format="float")
    packed = client.embeddings.create(**given)  # the client asks for base64 by itself
    assert [each.index for each in plain.data] == [0, 1]
    for one, other in zip(plain.data, packed.data, strict=True):
        assert len(one.embedding) == 64
        assert math.hypot(*one.embedding) == pytest.approx(1, abs=1e-3)
        assert list(other.embedding) == pytest.approx(one.embedding, abs=1e-2)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 2
    assert len(client.embeddings.create(**given, dimensions=8).data[0].embedding) == 8


def test_adapters_and_unknown_models_are_told_apart(client: OpenAI):
    with pytest.raises(openai.NotFoundError, match="none"):
        talk(client, model="none")
    with pytest.raises(openai.BadRequestError, match="does not support embeddings"):
        client.embeddings.create(model="llama", input="hello")


def test_what_the_engine_refuses_is_a_bad_request(client: OpenAI):
    with pytest.raises(openai.BadRequestError, match=r"exceeds|context|tokens"):
        complete(client, prompt="word " * 5000)
    with pytest.raises(openai.BadRequestError, match="'min_tokens'"):
        complete(client, extra_body={"min_tokens": 3})
    with pytest.raises(openai.BadRequestError, match="too large to process"):
        client.embeddings.create(model="vectors", input="word " * 3000)
    with pytest.raises(openai.BadRequestError, match="'stop' cannot contain an empty string"):
        complete(client, stop=["a", ""])


def opened(client: OpenAI, count: int) -> list[tuple[Any, Iterator[Any]]]:
    """Streams that would go on for long, each after its first part."""
    streams = [complete(client, max_tokens=1900, stream=True, **FOREVER) for _ in range(count)]
    readers = [(stream, iter(stream)) for stream in streams]
    for _, reader in readers:
        next(reader)
    return readers


def test_closing_eight_connections_frees_their_places_at_once(client: OpenAI, server: ServerProcess):
    """All eight places are taken; who comes next would wait for thousands of tokens if they were not freed."""
    before = metric(server, "vllm:generation_tokens_total", "llama")
    readers = opened(client, 8)
    waiting = Background(complete, client, max_tokens=2, extra_body={"ignore_eos": True})
    for stream, _ in readers:
        stream.close()
    assert waiting.result().usage.completion_tokens == 2
    # None of the eight came to its end, now or before: what is counted is the last request's alone.
    wait_until(
        lambda: metric(server, "vllm:generation_tokens_total", "llama") == before + 2, "its tokens to be counted"
    )


def test_a_request_that_joins_is_answered_while_others_run(client: OpenAI):
    readers = opened(client, 3)
    try:
        joined = complete(client, prompt="hello", max_tokens=3, extra_body={"ignore_eos": True})
        assert joined.usage.completion_tokens == 3
        rest = [sum(1 for _ in reader) for _, reader in readers]
    finally:
        for stream, _ in readers:
            with contextlib.suppress(Exception):
                stream.close()
    assert min(rest) > 100  # they went on all the while, and after

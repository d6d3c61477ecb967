"""Chats and completions as the official client sees them."""

from __future__ import annotations

import json

import openai
import pytest
from support.waiting import until


def say(client, text, **options):
    return client.chat.completions.create(model="speaker", messages=[{"role": "user", "content": text}], **options)


def complete(client, prompt, **options):
    return client.completions.create(model="speaker", prompt=prompt, **options)


def test_a_chat_is_answered_with_its_reason_and_its_tokens(client):
    answer = say(client, "one two three")
    choice = answer.choices[0]
    assert (answer.object, answer.model, choice.index) == ("chat.completion", "speaker", 0)
    assert answer.id.startswith("chatcmpl-")
    assert (choice.message.role, choice.message.content) == ("assistant", "one two three ")
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 3, 6)


def test_a_chat_that_is_cut_short_says_so(client):
    for name in ("max_tokens", "max_completion_tokens"):
        answer = say(client, "one two three", **{name: 2})
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one two ", "length")


def test_a_chat_streams_role_then_words_then_reason(client):
    chunks = list(say(client, "one two three", stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert [delta.content for delta in deltas[1:]] == ["one ", "two ", "three ", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 4 + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_ends_with_its_usage_if_that_is_wanted(client):
    *chunks, last = say(client, "one two", stream=True, stream_options={"include_usage": True})
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 2)


def test_several_choices_are_told_apart(client):
    answer = say(client, "one two", n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {"one two "}
    assert answer.usage.completion_tokens == 6
    texts = ["", ""]
    for chunk in say(client, "one two", n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["one two ", "one two "]


def test_probabilities_of_a_chats_tokens_join_to_its_text(client):
    answer = say(client, "one two", logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    assert [token.logprob for token in tokens] == [-0.5, -0.5]
    assert [(other.token, other.logprob) for other in tokens[1].top_logprobs] == [("two ", -0.5), ("other", -2.5)]
    assert bytes(tokens[0].bytes) == b"one "
    streamed = [
        token.token
        for chunk in say(client, "one two", logprobs=True, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert streamed == ["one ", "two "]


def test_echo_with_probabilities_needs_a_model_that_tells_those_of_the_prompt(client):
    with pytest.raises(
        openai.BadRequestError, match="has no output 'prompt_logprobs' with the probabilities of the prompt"
    ):
        complete(client, "one two", logprobs=1, echo=True)


def test_probabilities_of_a_completion_have_offsets(client):
    choice = complete(client, "one two", logprobs=1).choices[0]
    assert choice.logprobs.tokens == ["one ", "two "]
    assert choice.logprobs.text_offset == [0, 4]
    assert choice.logprobs.top_logprobs[0] == {"one ": -0.5}


def test_a_chat_can_call_tools(client):
    tools = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}]
    answer = say(client, "hello", tools=tools, tool_choice="required").choices[0]
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    call = answer.message.tool_calls[0]
    assert (call.id, call.function.name, json.loads(call.function.arguments)) == ("call_1", "note", {"said": "hello"})
    chunks = list(say(client, "hello", tools=tools, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(call.index, call.function.name) for call in calls] == [(0, "note")]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_conversation_reaches_the_model_as_it_was_sent(client):
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "conversation"}]},
    ]
    answer = client.chat.completions.create(model="speaker", messages=messages, user="somebody")
    assert json.loads(answer.choices[0].message.content) == {
        "messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "conversation"}]
    }


def test_fields_become_the_models_sampling_parameters(client):
    answer = say(
        client,
        "sampling",
        temperature=0.5,
        seed=7,
        stop=["x"],
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        extra_body={"top_k": 3},
    )
    assert json.loads(answer.choices[0].message.content) == {
        "max_tokens": 65536,
        "seed": 7,
        "stop": ["x"],
        "structured_outputs": {"json": {"type": "object"}},
        "temperature": 0.5,
        "top_k": 3,
    }
    assert json.loads(complete(client, "sampling").choices[0].text) == {"max_tokens": 16}


def test_the_part_of_a_name_behind_the_separator_is_an_adapter(client):
    answer = client.completions.create(model="speaker:fine", prompt="sampling")
    assert answer.model == "speaker:fine"
    assert json.loads(answer.choices[0].text) == {"lora_name": "fine", "max_tokens": 16}


def test_a_completion_continues_its_prompt(client):
    answer = complete(client, "one two three stop four", stop="stop")
    assert (answer.object, answer.choices[0].text, answer.choices[0].finish_reason) == (
        "text_completion",
        "one two three ",
        "stop",
    )
    assert answer.id.startswith("cmpl-")


def test_several_prompts_are_answered_in_one_answer(client):
    answer = complete(client, ["one", "two"], n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "one "), (1, "one "), (2, "two "), (3, "two "),
    ]  # fmt: skip
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 4)
    texts = {0: "", 1: ""}
    for chunk in complete(client, ["one two", "three"], stream=True, echo=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "one twoone two ", 1: "threethree "}


def test_a_model_with_text_alone_can_be_served(client):
    answer = client.completions.create(model="upper", prompt="abc")
    assert (answer.choices[0].text, answer.choices[0].finish_reason, answer.usage) == ("ABC", "stop", None)
    chunks = list(client.completions.create(model="upper", prompt="abc", stream=True))
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in chunks] == [
        ("ABC", None), ("", "stop"),
    ]  # fmt: skip
    parameters = client.completions.create(model="upper", prompt="parameters", temperature=0.25).choices[0].text
    assert json.loads(parameters.lower()) == {"max_tokens": 16, "temperature": 0.25}


def test_an_error_before_the_first_word_has_a_status(client):
    import openai

    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="this model fails when it is told to") as caught:
            list(say(client, "fail", stream=stream))
        assert caught.value.type == "invalid_request_error"


def test_an_error_in_mid_stream_is_the_streams_last_event(client):
    import openai

    stream = iter(complete(client, "fail later", stream=True))
    assert next(stream).choices[0].text == "fail "
    with pytest.raises(openai.APIError, match="this model fails when it is told to"):
        next(stream)


@pytest.mark.parametrize("prompts", [["wait"], ["wait", "wait"]])
def test_closing_a_stream_cancels_its_inferences(client, prompts):
    before = int(complete(client, "cancelled").choices[0].text)
    stream = complete(client, prompts, stream=True)
    # All of them: one that its model has not been given yet is cancelled without it, and it would not count that.
    begun = {0}
    for event in stream:
        assert event.choices[0].text == "waiting "
        begun.add(event.choices[0].index)
        if len(begun) == len(prompts):
            break
    stream.close()
    expected = str(before + len(prompts))
    until(lambda: complete(client, "cancelled").choices[0].text.strip() == expected, "the model to notice")

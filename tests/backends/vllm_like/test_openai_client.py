"""OpenAI's own client and a real engine: what programs written for that API get from a model of this backend."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from support.server import ServerProcess

if TYPE_CHECKING:
    from openai import OpenAI

MODELS = ("llama", "fake", "vectors", "ranker", "adapted")
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


def complete(client: OpenAI, **options: Any) -> Any:
    given = {"model": "llama", "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **options}
    return client.completions.create(**given)


def talk(client: OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "llama", "messages": TALK, "temperature": 0, **options})


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
    talk(client, max_tokens=20)  # so that both of the next ones find as many tokens in the cache
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


def test_the_same_seed_gives_the_same_text(client: OpenAI):
    texts = [
        talk(client, max_tokens=20, temperature=1.5, seed=seed, extra_body={"ignore_eos": True})
        .choices[0]
        .message.content
        for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1] != texts[2]


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


def test_answers_of_a_schema_continue_behind_tokens_that_are_no_whole_characters(client: OpenAI):
    """A tiny model says many of them, a real one some."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    structure: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    given = {"max_tokens": 300, "temperature": 0.5, "response_format": structure}
    reasons = [talk(client, **given, seed=seed).choices[0].finish_reason for seed in range(5)]
    assert set(reasons) <= {"stop", "length"}


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


def test_requests_that_the_engine_refuses_are_bad_requests(client: OpenAI):
    import openai

    with pytest.raises(openai.BadRequestError, match="'min_tokens'"):
        complete(client, extra_body={"min_tokens": 3})
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as caught:
        client.embeddings.create(model="vectors", input="word " * 3000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="'stop' cannot contain an empty string"):
        complete(client, stop=["a", ""])


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("llama", r"context length is 2048 tokens.*Please shorten the prompt, or raise 'max_model_len' in the model's"),
        ("fake", "longer than the maximum model length of 4096"),
    ],
)
def test_a_prompt_beyond_the_context_has_openais_code_and_advice_that_exists(client: OpenAI, model: str, told: str):
    import openai

    with pytest.raises(openai.BadRequestError, match=told) as caught:
        complete(client, model=model, prompt="word " * 5000)
    assert caught.value.code == "context_length_exceeded"


def test_prompts_are_token_ids_with_each_engine(client: OpenAI):
    import openai

    plain = complete(client, prompt="hello", max_tokens=4, temperature=0)
    assert plain.usage.prompt_tokens > 1
    for prompt, count in (([1, 2, 3], 1), ([[1, 2, 3], [1, 2]], 2)):
        answer = complete(client, prompt=prompt, max_tokens=4, temperature=0)
        assert len(answer.choices) == count
        assert answer.usage.prompt_tokens == (3 if count == 1 else 5)
    complete(client, model="fake", prompt="hello other", max_tokens=1)  # its tokens are the words that it has read
    assert complete(client, model="fake", prompt=[1, 1], max_tokens=1).usage.prompt_tokens == 2
    with pytest.raises(openai.BadRequestError, match="invalid tokens"):
        complete(client, prompt=[1 << 30])
    with pytest.raises(openai.BadRequestError, match="an array of token ids"):
        complete(client, prompt=[-1])


def test_more_choices_than_places_are_generated_in_parts(client: OpenAI):
    """The model `adapted` runs two requests at a time."""
    given = {
        "model": "adapted",
        "n": 5,
        "temperature": 1,
        "max_tokens": 6,
        "extra_body": {"ignore_eos": True, "seed": 7},
    }
    whole = complete(client, **given)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3, 4]
    assert [choice.finish_reason for choice in whole.choices] == ["length"] * 5
    assert whole.usage.completion_tokens == 30
    assert len({choice.text for choice in whole.choices}) > 2  # parts with the same seed would repeat each other
    streamed = [""] * 5
    for chunk in complete(client, **given, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in whole.choices]


def test_responses_call_tools_follow_schemas_and_continue(client: OpenAI):
    tool: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    text: Any = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    given: dict[str, Any] = {"model": "llama", "max_output_tokens": 400, "temperature": 0.5, "extra_body": {"seed": 1}}
    first = client.responses.create(input="hello", text=text, **given)
    assert set(json.loads(first.output_text)) == {"age", "ok"}
    assert first.usage is not None
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    events = list(
        client.responses.create(
            input="the other", previous_response_id=first.id, tools=[tool], tool_choice="required", stream=True, **given
        )
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (call,) = events[-1].response.output
    assert (call.type, call.name) == ("function_call", "weather")
    assert set(json.loads(call.arguments)) == {"age", "ok"}
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(arguments) == call.arguments
    assert len(arguments) > 1
    assert events[-1].response.usage.input_tokens > first.usage.input_tokens


def test_messages_of_anthropics_client_stream_calls_and_count_tokens(server: ServerProcess):
    import anthropic

    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    asked: dict[str, Any] = {"model": "llama", "messages": TALK}
    with anthropic.Anthropic(
        base_url=f"http://127.0.0.1:{server.openai_port}",  # type: ignore[attr-defined]
        api_key="any",
        max_retries=0,
        timeout=30,
    ) as client:
        whole = client.messages.create(**asked, max_tokens=6, extra_body={"temperature": 0})
        assert whole.content[0].text
        given = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
        assert given == client.messages.count_tokens(**asked).input_tokens
        with client.messages.stream(
            **asked, max_tokens=400, tools=[tool], tool_choice={"type": "any"}, extra_body={"temperature": 0}
        ) as stream:
            kinds = [event.type for event in stream]
            message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert (message.content[0].type, message.content[0].name) == ("tool_use", "weather")
    assert set(message.content[0].input) == {"age", "ok"}
    assert kinds.count("input_json") > 1
    assert message.usage.output_tokens > 1


def post(server: ServerProcess, path: str, **document: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=30)  # type: ignore[attr-defined]
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(document))
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.mark.parametrize("model", ["llama", "fake"])
def test_tokens_are_those_that_the_engine_counts(server: ServerProcess, client: OpenAI, model: str):
    status, got = post(server, "/tokenize", model=model, prompt=PROMPT, return_token_strs=True)
    assert (status, got["count"]) == (200, len(got["tokens"]))
    assert len(got["token_strs"]) == got["count"]
    used = complete(client, model=model, max_tokens=1).usage
    assert used.prompt_tokens == got["count"]
    status, plain = post(server, "/tokenize", model=model, prompt=PROMPT, add_special_tokens=False)
    assert post(server, "/detokenize", model=model, tokens=plain["tokens"]) == (200, {"prompt": PROMPT})
    status, got = post(server, "/tokenize", model=model, messages=TALK)
    assert (status, got["count"]) == (200, talk(client, model=model, max_tokens=1).usage.prompt_tokens)


@pytest.mark.parametrize("model", ["llama", "fake"])
def test_tokens_that_do_not_exist_are_rejected_in_our_words(server: ServerProcess, client: OpenAI, model: str):
    complete(client, model=model, max_tokens=1)
    for token in (1 << 20, (1 << 31) - 1):
        status, got = post(server, "/detokenize", model=model, tokens=[1, token])
        expected = f"Error generating stream: 'tokens' has {token}; the model's vocabulary has the token ids 0 to "
        assert (status, got["error"]["message"].rstrip("0123456789")) == (400, expected)


def test_a_bias_and_an_input_of_tokens_that_do_not_exist_are_rejected(client: OpenAI):
    with pytest.raises(openai.BadRequestError, match="'logit_bias' has 1000000; the model's vocabulary has"):
        complete(client, logit_bias={"1000000": 1})
    with pytest.raises(openai.BadRequestError, match="'input' has 1000000; the model's vocabulary has"):
        client.embeddings.create(model="vectors", input=[[1, 1000000]])


def test_temperatures_and_log_probabilities_are_those_of_the_engine(client: OpenAI):
    # An end that is chosen by chance would be no token of the answer.
    given = {"temperature": 3, "extra_body": {"seed": 1, "ignore_eos": True}}
    got = complete(client, max_tokens=1, logprobs=12, **given).choices[0].logprobs
    assert len(got.top_logprobs[0]) > 6  # equal texts are one
    with pytest.raises(
        openai.BadRequestError, match="Requested sample logprobs of 21, which is greater than max allowed: 20"
    ):
        complete(client, max_tokens=1, logprobs=21)
    with pytest.raises(
        openai.BadRequestError, match="Requested sample logprobs of 21, which is greater than max allowed: 20"
    ):
        talk(client, max_tokens=1, logprobs=True, top_logprobs=21)


def test_documents_are_ranked_by_a_head_or_by_vectors(server: ServerProcess):
    documents = ["the other", "hello the world", "hello"]
    status, got = post(server, "/v1/rerank", model="vectors", query="hello", documents=documents)
    assert status == 200
    assert next(result["index"] for result in got["results"]) == 2
    assert got["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-3)
    assert got["usage"]["total_tokens"] > 4
    status, ranked = post(server, "/v1/rerank", model="ranker", query="hello", documents=documents)
    scores = [result["relevance_score"] for result in ranked["results"]]
    assert scores == sorted(scores, reverse=True)
    assert scores != [result["relevance_score"] for result in got["results"]]
    status, refused = post(server, "/v1/rerank", model="llama", query="hello", documents=documents)
    assert (status, "does not support embeddings" in refused["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_tokens", 2), ("stop_token_ids", [3]), ("priority", 1), ("cache_salt", "s"), ("truncate_prompt_tokens", 2),
        ("kv_transfer_params", {"a": 1}), ("regex", "a(?=b)"), ("mirostat", 2), ("typical_p", 0.5), ("dry_multiplier", 1),
    ],
)  # fmt: skip
def test_a_field_that_the_engine_cannot_obey_is_rejected(client, field, value):
    for asked in (complete, talk):
        with pytest.raises(openai.BadRequestError) as caught:
            asked(client, extra_body={field: value})
        assert field in str(caught.value)


def test_echo_with_logprobs_has_those_that_the_model_generates_with(client):
    """As an evaluation harness asks: a text is scored by the probabilities that it is generated with."""
    made = complete(client, max_tokens=12, logprobs=2, temperature=0)
    ids = tokens_of(client, PROMPT + made.choices[0].text)
    known = made.choices[0].logprobs
    answer = complete(client, prompt=[ids], max_tokens=1, echo=True, logprobs=2)
    found = answer.choices[0].logprobs
    assert answer.choices[0].text.startswith("<|bos|>" + PROMPT)
    assert answer.usage.prompt_tokens == len(ids)
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(ids) + 1
    assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
    assert all(isinstance(one, float) for one in found.token_logprobs[1:])
    begin = len(tokens_of(client, PROMPT))
    # Until the first token that other tokens are made of when the text is read again.
    same = [one == other for one, other in zip(known.tokens, found.tokens[begin:], strict=False)]
    count = same.index(False) if False in same else len(same)
    assert count > 1
    assert found.token_logprobs[begin : begin + count] == pytest.approx(known.token_logprobs[:count], abs=1e-3)
    assert [max(top.values()) for top in found.top_logprobs[begin : begin + count]] == pytest.approx(
        known.token_logprobs[:count], abs=1e-3
    )
    assert found.text_offset[1] == len(found.tokens[0])


def test_parts_of_characters_have_log_probabilities_too(client):
    answer = complete(client, prompt="h\u00e9 \U0001f600", max_tokens=0, echo=True, logprobs=1)
    found = answer.choices[0].logprobs
    assert len(found.tokens) == answer.usage.prompt_tokens > 6
    assert all(-20 < one < 0 for one in found.token_logprobs[1:])


def test_a_prompt_that_exceeds_the_context_is_not_scored(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
        complete(client, prompt=[[70] * 2048], echo=True, logprobs=1)


def tokens_of(client, text: str) -> list[int]:
    base = str(client.base_url).removesuffix("v1/")
    return client.post(f"{base}tokenize", body={"model": "llama", "prompt": text}, cast_to=object)["tokens"]  # type: ignore[index]


def test_a_prompt_is_echoed_without_an_answer(client):
    answer = complete(client, echo=True, max_tokens=0)
    assert (answer.choices[0].text, answer.usage.completion_tokens) == (PROMPT, 0)
    assert complete(client, max_tokens=0).choices[0].text == ""
    ids = client.post(
        "/tokenize".replace("/", f"{str(client.base_url).removesuffix('v1/')}", 1),
        body={"model": "llama", "prompt": PROMPT, "add_special_tokens": False},
        cast_to=object,
    )["tokens"]  # type: ignore[index]
    assert complete(client, prompt=ids, echo=True, max_tokens=0).choices[0].text == PROMPT


def test_tokens_that_were_in_the_cache_are_counted(client):
    long = "the other hello world " * 20
    complete(client, prompt=long)
    answer = complete(client, prompt=long)
    assert 0 < answer.usage.prompt_tokens_details.cached_tokens <= answer.usage.prompt_tokens
    *_, last = complete(client, prompt=long, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens_details.cached_tokens

"""`/v1/messages` by Anthropic's own client: messages, events, tools, counts and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from llm.openai.fake_models import Api, given, said, served
from support.late_import import LateModule

from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import OutputTensor

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LateModule("anthropic")

TOOL: Any = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
USER: Any = [{"role": "user", "content": "one two"}]


@contextmanager
def connected(api: Api, **settings: Any) -> Iterator[anthropic.Anthropic]:
    base = f"http://127.0.0.1:{api.port}"
    with anthropic.Anthropic(base_url=base, max_retries=0, timeout=20, **{"api_key": "any", **settings}) as client:
        yield client


def counted(response, prompt: int, tokens: int):
    for name, value in (("num_input_tokens", prompt), ("num_output_tokens", tokens)):
        response.outputs.append(OutputTensor(name, Datatype.UINT32, (1,), np.array([value], np.uint32).tobytes()))
    return response


def answer(_, request, sink):
    """Answers by the last message: with its words one by one, with a call, with reasoning, or with an error."""
    conversation = json.loads(given(request, "messages"))
    last = conversation["messages"][-1]["content"]
    if last == "repeat":
        sampling = json.loads(given(request, "sampling_parameters"))
        sink.send(said(json.dumps({**conversation, "sampling": sampling})), True)
    elif last == "call":
        function = {"name": "weather", "arguments": ""}
        begin = {"index": 0, "id": "call_1", "type": "function", "function": function}
        sink.send(said("Let me see.", message=[json.dumps({"content": "Let me see."})]), False)
        sink.send(said("", message=[json.dumps({"tool_calls": [begin]})]), False)
        for part in ('{"city": ', '"Oslo"}'):
            more = {"index": 0, "function": {"arguments": part}}
            sink.send(said("", message=[json.dumps({"tool_calls": [more]})]), False)
        sink.send(said("", finish_reason=["tool_calls"]), True)
    elif last in {"cut call", "bad call"}:
        function = {"name": "weather", "arguments": '{"city": '}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        reason = "length" if last == "cut call" else "tool_calls"
        sink.send(said("", message=[json.dumps({"tool_calls": [call]})], finish_reason=[reason]), True)
    elif last == "think":
        sink.send(said("", message=[json.dumps({"reasoning_content": "Well, "})]), False)
        sink.send(said("", message=[json.dumps({"reasoning_content": "yes."})]), False)
        sink.send(said("Yes.", finish_reason=["stop"]), True)
    elif last == "fail later":
        sink.send(said("begun "), False)
        sink.send(said(error="no luck"), True)
    elif last == "fail":
        sink.send(said(error="no luck"), True)
    elif last == "too much":
        sink.send(said(error="Error generating stream: This model's maximum context length is 8 tokens."), True)
    else:
        words = str(last).split()
        for number, word in enumerate(words):
            reason = "length" if len(words) == 1 else "stop"
            final = {"finish_reason": [reason]} if word == words[-1] else {}
            sink.send(counted(said(f"{word} ", **final), 5, 1), number == len(words) - 1)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with served(answer) as each:
        yield each


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[anthropic.Anthropic]:
    with connected(api) as each:
        yield each


def ask(client: anthropic.Anthropic, content: Any = "repeat", **options: Any) -> Any:
    fields: dict[str, Any] = {"model": "fake", "max_tokens": 50, "messages": [{"role": "user", "content": content}]}
    return client.messages.create(**{**fields, **options})


def repeated(message) -> dict[str, Any]:
    """The conversation that the model got, which it has repeated."""
    return json.loads(message.content[0].text)


def test_a_message_is_answered_with_a_text_block(client):
    message = ask(client, "one two")
    assert (message.type, message.role, message.model, message.stop_reason) == (
        "message",
        "assistant",
        "fake",
        "end_turn",
    )
    assert message.id.startswith("msg_")
    (block,) = message.content
    assert (block.type, block.text) == ("text", "one two ")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 2)
    assert ask(client, "one").stop_reason == "max_tokens"


def test_blocks_become_messages_of_a_chat(client):
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "How is "}, {"type": "text", "text": "it?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "c2", "name": "weather", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "sun"}], "is_error": False},
            {"type": "text", "text": "repeat"},
        ]},
    ]  # fmt: skip
    told = repeated(
        ask(
            client, messages=messages, system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "In French."}],
            tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True}, thinking={"type": "disabled"},
            stop_sequences=["END"], extra_body={"temperature": 0.5, "top_k": 3, "top_p": 0.9}, metadata={"user_id": "u"},
        )
    )  # fmt: skip
    weather = {"name": "weather", "description": "The weather of a city", "parameters": TOOL["input_schema"]}
    calls = [
        {"id": number, "type": "function", "function": {"name": "weather", "arguments": arguments}}
        for number, arguments in (("c1", '{"city":"Oslo"}'), ("c2", "{}"))
    ]
    assert told == {
        "messages": [
            {"role": "system", "content": "Be brief.\nIn French."},
            {"role": "user", "content": "How is \nit?"},
            {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "tool", "tool_call_id": "c2", "content": "sun"},
            {"role": "user", "content": "repeat"},
        ],
        "tools": [{"type": "function", "function": weather}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "sampling": {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["END"], "max_tokens": 50},
    }


def test_an_answer_continues_the_last_message_of_the_assistant(client):
    told = repeated(ask(client, messages=[*USER, {"role": "assistant", "content": "repeat"}]))
    assert (told["continue_final_message"], told["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(("choice", "told"), [
    ({"type": "auto"}, "auto"),
    ({"type": "none"}, "none"),
    ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
])  # fmt: skip
def test_choices_of_tools_reach_the_model(client, choice, told):
    assert repeated(ask(client, tools=[TOOL], tool_choice=choice))["tool_choice"] == told


def test_structures_reach_the_model(client):
    schema: Any = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}
    output: Any = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    told = repeated(ask(client, output_config=output))
    assert told["sampling"]["structured_outputs"] == {"json": schema}
    assert told["reasoning_effort"] == "low"


def test_events_are_in_the_official_order(client):
    events = list(ask(client, "one two", stream=True))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert (events[0].message.content, events[0].message.usage.input_tokens) == ([], 5)
    assert [event.delta.text for event in events[2:4]] == ["one ", "two "]
    assert (events[5].delta.stop_reason, events[5].usage.output_tokens) == ("end_turn", 2)


def test_the_client_assembles_text_and_calls(client):
    with client.messages.stream(
        model="fake", max_tokens=9, messages=[{"role": "user", "content": "call"}], tools=[TOOL]
    ) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds.count("input_json") == 2
    text, call = message.content
    assert (text.text, message.stop_reason) == ("Let me see.", "tool_use")
    assert (call.type, call.id, call.name, call.input) == ("tool_use", "call_1", "weather", {"city": "Oslo"})
    whole = ask(client, "call", tools=[TOOL])
    assert [block.to_dict() for block in whole.content] == [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
    ]


def test_a_call_that_is_cut_has_no_input_and_one_that_is_malformed_is_text(client):
    message = ask(client, "cut call")
    assert (message.stop_reason, message.content[0].input) == ("max_tokens", {})
    message = ask(client, "bad call")
    assert (message.stop_reason, message.content[0].text) == ("end_turn", 'weather({"city": )')


def test_thinking_is_a_block_of_its_own(client):
    message = ask(client, "think")
    assert [(block.type, getattr(block, "thinking", None)) for block in message.content] == [
        ("thinking", "Well, yes."),
        ("text", None),
    ]
    with client.messages.stream(model="fake", max_tokens=9, messages=[{"role": "user", "content": "think"}]) as stream:
        thinking, text = stream.get_final_message().content
    assert (thinking.thinking, text.text) == ("Well, yes.", "Yes.")


def test_tokens_are_counted_by_the_model(api, client):
    count = client.messages.count_tokens(model="fake", messages=USER, system="x", tools=[TOOL])
    assert count.input_tokens == 5
    assert json.loads(given(api.engine.requests[-1], "sampling_parameters")) == {"max_tokens": 1}
    with pytest.raises(anthropic.BadRequestError, match="does not count tokens"):
        client.messages.count_tokens(model="fake", messages=[{"role": "user", "content": "think"}])


def test_models_are_listed_in_the_form_of_the_client(api, client):
    (model,) = client.models.list().data
    assert (model.id, model.type, model.display_name) == ("fake", "model", "fake")
    assert client.models.retrieve("fake").created_at == model.created_at
    with pytest.raises(anthropic.NotFoundError, match="The model `none` does not exist"):
        client.models.retrieve("none")
    assert api.request("GET", "/v1/models").json()["object"] == "list"


def test_keys_are_sent_in_either_header():
    with served(answer, keys=("k",)) as api:
        for settings in ({"api_key": "k"}, {"api_key": None, "auth_token": "k"}):
            with connected(api, **settings) as client:
                assert ask(client, "one two").content[0].text == "one two "
        with connected(api, api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError) as caught:
            ask(client)
        assert caught.value.body["error"]["type"] == "authentication_error"
        assert "Incorrect API key provided" in caught.value.body["error"]["message"]
        refused = api.request("POST", "/v1/messages", "{}")
        assert (refused.status, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert "You didn't provide an API key" in refused.json()["error"]["message"]


def test_errors_have_anthropics_form(api, client):
    for stream in (False, True):
        with pytest.raises(anthropic.InternalServerError, match="no luck") as failed:
            ask(client, "fail", stream=stream)
        assert failed.value.body == {"type": "error", "error": {"type": "api_error", "message": "no luck"}}
    with pytest.raises(anthropic.APIStatusError, match="no luck"):
        list(ask(client, "fail later", stream=True))
    with pytest.raises(anthropic.NotFoundError, match="The model `none` does not exist") as unknown:
        ask(client, model="none")
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .*maximum context length is 8 tokens"):
        ask(client, "too much")
    got = api.request("GET", "/v1/messages")
    assert (got.status, got.json()["type"]) == (405, "error")
    assert (
        api.request("POST", "/v1/messages", "{")
        .json()["error"]["message"]
        .startswith("We could not parse the JSON body")
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: at least one message is required"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: must be user or assistant, not 'tool'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: must be a string or an array of blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.0.content.0.type: 'video' is not supported here"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages.0.content.0.type: 'image' is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages.0.content.0.tool_use_id: must be a string"),
        ({"system": 5}, "system: must be a string or an array"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name: the tool 'web_search' is of type 'web_search_20250305', which only Anthropic's own service knows"),
        ({"tools": ["x"]}, "tools.0: must be an object"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema: must be an object"),
        ({"tool_choice": {"type": "always"}}, "tool_choice.type: must be auto, any, tool or none"),
        ({"stop_sequences": [1]}, "`stop_sequences` must be an array of strings"),
        ({"mcp_servers": [{"url": "x"}]}, "`mcp_servers` is not supported"),
        ({"max_tokens": 0}, "`max_tokens` must be at least 1"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: must be"),
    ],
)  # fmt: skip
def test_invalid_requests_are_rejected(client, fields, message):
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, extra_body=fields)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert message in caught.value.body["error"]["message"]


def test_a_long_conversation_is_read_beside_the_loop(client):
    text = "word " * 60_000
    told = repeated(
        ask(client, messages=[{"role": "user", "content": text}, *USER, {"role": "user", "content": "repeat"}])
    )
    assert told["messages"][0]["content"] == text
    with pytest.raises(anthropic.NotFoundError):
        ask(client, text, model="none")


def test_what_has_no_effect_here_is_ignored_with_a_line_in_the_log(client, caplog):
    caplog.set_level("INFO", "naiad.openai")
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    search = {"type": "web_search_20250305", "name": "web_search"}
    for _ in range(2):
        got = repeated(ask(client, tools=[TOOL, search], extra_body={"context_management": edits}))
        assert [tool["function"]["name"] for tool in got["tools"]] == ["weather"]
    lines = [record.getMessage() for record in caplog.records]
    for line in ("ignoring `context_management`", "ignoring tools of type 'web_search_20250305'"):
        assert lines.count(line) == 1


def test_blocks_of_tools_that_the_service_runs_are_left_out_of_the_history(client):
    blocks = [
        {"type": "text", "text": "Searched."},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
    ]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "repeat"},
    ]
    got = repeated(ask(client, messages=messages))
    assert got["messages"][1] == {"role": "assistant", "content": "Searched."}

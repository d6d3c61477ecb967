"""Custom tools in chats: functions with one text for the model, and texts for the client, whole and in streams."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from naiad_llm.openai.custom_tools import CustomCalls, CustomInput

from .fake_models import given, said, served

PATCH: Any = {
    "type": "custom",
    "custom": {
        "name": "apply_patch",
        "description": "Change files",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}},
    },
}
CLOSE: Any = {"type": "function", "function": {"name": "close", "parameters": {"type": "object", "properties": {}}}}
CHOSEN: Any = {"type": "custom", "custom": {"name": "apply_patch"}}
SAY: Any = {"role": "user", "content": "patch"}
TEXT = 'say "hi"\n\u00e9\U0001f600'


def answer(_, request, sink):
    """Calls each tool, in parts of three letters; repeats other conversations."""
    conversation = json.loads(given(request, "messages"))
    if conversation["messages"][-1]["content"] != "patch":
        sink.send(said(json.dumps(conversation)), True)
        return
    for number, tool in enumerate(conversation["tools"]):
        name = tool["function"]["name"]
        text = json.dumps({"input": TEXT}) if name == "apply_patch" else "{}"
        parts = [{"index": number, "function": {"arguments": text[at : at + 3]}} for at in range(0, len(text), 3)]
        parts[0].update(id=f"call_{number}", type="function")
        parts[0]["function"]["name"] = name
        for part in parts:
            sink.send(said("", message=[json.dumps({"tool_calls": [part]})]), False)
    sink.send(said("", finish_reason=["tool_calls"]), True)


@pytest.fixture(scope="module")
def api():
    with served(answer) as each:
        yield each


@pytest.fixture
def client(api):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{api.port}/v1", api_key="any", max_retries=0, timeout=20) as made:
        yield made


def ask(client, **options):
    return client.chat.completions.create(model="fake", **{"messages": [SAY], "tools": [PATCH, CLOSE], **options})


def repeated(client, **options):
    """The conversation that the model gets."""
    messages = [*options.pop("messages", ()), {"role": "user", "content": "repeat"}]
    return json.loads(ask(client, messages=messages, **options).choices[0].message.content)


def test_a_call_of_a_custom_tool_has_its_text(client):
    custom, function = ask(client).choices[0].message.tool_calls
    assert (custom.id, custom.type, custom.custom.name, custom.custom.input) == (
        "call_0",
        "custom",
        "apply_patch",
        TEXT,
    )
    assert (function.type, function.function.name, function.function.arguments) == ("function", "close", "{}")


def test_the_text_of_a_custom_tool_is_streamed_as_it_is_generated(client):
    chunks = [chunk.choices[0] for chunk in ask(client, stream=True)]
    parts = [part.model_dump(exclude_unset=True) for chunk in chunks for part in chunk.delta.tool_calls or ()]
    customs = [part for part in parts if part["index"] == 0]
    assert customs[0] == {"index": 0, "id": "call_0", "type": "custom", "custom": {"name": "apply_patch", "input": ""}}
    assert all(set(part) == {"index", "custom"} and part["custom"]["input"] for part in customs[1:])
    assert len(customs) > 4
    assert "".join(part["custom"]["input"] for part in customs) == TEXT
    others = [part for part in parts if part["index"] == 1]
    assert (others[0]["type"], "".join(part["function"]["arguments"] for part in others)) == ("function", "{}")
    assert chunks[-1].finish_reason == "tool_calls"


def test_models_get_custom_tools_as_functions_with_one_text(client):
    tools = repeated(client)["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["apply_patch", "close"]
    assert tools[0]["type"] == "function"
    assert tools[0]["function"]["description"] == (
        "Change files\n\nThe input must match this lark grammar:\nstart: /.+/"
    )
    assert tools[0]["function"]["parameters"]["properties"] == {"input": {"type": "string"}}


def test_calls_of_custom_tools_in_the_history_are_calls_of_functions(client):
    made = {"id": "a", "type": "custom", "custom": {"name": "apply_patch", "input": 'say "hi"'}}
    history: Any = [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    called, result, _ = repeated(client, messages=history)["messages"]
    function = {"name": "apply_patch", "arguments": '{"input":"say \\"hi\\""}'}
    assert called["tool_calls"] == [{"id": "a", "type": "function", "function": function}]
    assert (result["role"], result["content"]) == ("tool", "done")


def test_a_custom_tool_is_chosen_like_a_function(client):
    function = {"type": "function", "function": {"name": "apply_patch"}}
    assert repeated(client, tool_choice=CHOSEN)["tool_choice"] == function
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CHOSEN]}}
    got = repeated(client, tool_choice=allowed)
    assert ([tool["function"]["name"] for tool in got["tools"]], got["tool_choice"]) == (["apply_patch"], "required")


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "`tools[0].custom` must be an object", "tools[0].custom"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "`tools[0].custom.name` must be a string", "tools[0].custom.name"),
        ({"tools": [CLOSE], "tool_choice": CHOSEN}, "Tool 'apply_patch' has not been passed in `tools`.", "tool_choice"),
        ({"tools": [PATCH], "tool_choice": {"type": "custom"}}, "`tool_choice` must be auto, none, required", "tool_choice"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": 3}}]}]}, "`messages[0].tool_calls[0].custom.input` must be a string", "messages[0].tool_calls[0].custom.input"),
    ],
)  # fmt: skip
def test_invalid_custom_tools_are_rejected(client, fields, message, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.body["message"].startswith(message)
    assert caught.value.param == param


@given_any(st.text(), st.data())
def test_a_text_is_whole_however_its_json_is_divided(text, data):
    arguments = json.dumps({"input": text}, ensure_ascii=data.draw(st.booleans()))
    reader, made = CustomInput(), ""
    while arguments:
        count = data.draw(st.integers(1, len(arguments)))
        made += reader.add(arguments[:count])
        arguments = arguments[count:]
    assert made == text
    assert reader.end() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [("not JSON", ""), ('{"patch": "x"}', '{"patch": "x"}'), ('{"input": 3}', '{"input": 3}'), ('{"input": "cut \\', "cut ")],
)  # fmt: skip
def test_arguments_in_another_form_are_the_text_at_the_end(arguments, text):
    calls = CustomCalls({"f"})
    head = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    parts = [{"tool_calls": [head]}, {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}]
    first, second = (calls.streamed(0, part, is_last=False) for part in parts)
    last = calls.streamed(0, None, is_last=True)
    assert first is not None
    assert first["tool_calls"][0]["custom"] == {"name": "f", "input": ""}
    more = [part for message in (second, last) if message for part in message["tool_calls"]]
    assert "".join(part["custom"]["input"] for part in more) == text

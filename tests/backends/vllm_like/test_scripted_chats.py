"""Chats with models that say given texts: system messages, tools in the history and in answers, and what a template rejects."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anthropic
import openai
import pytest
from support.server import ServerProcess, free_ports

from .scripted import HERMES, THINKING, ScriptedModels, call_of

if TYPE_CHECKING:
    from openai import OpenAI

USER: Any = {"role": "user", "content": "Hello"}
RUN: Any = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
STOP: Any = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}
PATCH: Any = {"type": "custom", "custom": {"name": "apply_patch", "description": "Change files"}}
LIST = call_of("run", '"command": "ls -l /tmp"}')
PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHANNELS = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{%- else %}{{ '<|start|>' + m.role + '<|message|>' + (m.content or '') + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}<|channel|>commentary{%- endif %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant\n' }}{%- endif %}"
)
"""A template of the family gpt-oss, whose answers begin with the name of a channel."""
REFUSING = "{% if messages[-1].content == 'Refuse!' %}{{ raise_exception('No, thanks.') }}{% endif %}" + PLAIN


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engines: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("scripted")
    models = ScriptedModels(folder / "models", engines)
    models.add("caller", LIST, ["It is ", "listed."])
    models.add("patcher", call_of("apply_patch", r'"input": "one\n\"two\""}'), ["It is ", "changed."])
    models.add("twice", [*LIST, "\n", *call_of("stop", "}")])
    models.add("thinker", ["I should ", "list it.\n</think>\n\n", *LIST], template=THINKING)
    models.add("teller", ["It is ", "so."], template=HERMES.replace("think>", "no-tag>"))
    models.add("answerer", ['{"answer": "', 'it is so"}'])
    models.add("lister", LIST, ['{"answer": "', 'it is listed"}'])
    models.add("pensive", ["I should ", "say it.\n</think>\n\n", '{"answer": "', 'it is so"}'], template=THINKING)
    models.add("confused", ["Look: ", *call_of("walk", '"to": "the moon"}')])
    models.add("lost", call_of("walk", '"to": "the moon"}'))
    models.add("strict", ["Fine, ", "thanks."])
    models.add("alternating", ["Fine, ", "thanks."], template=NO_SYSTEM)
    models.add("refusing", ["Fine, ", "thanks."], template=REFUSING)
    models.add("channels", ["Neither a channel ", "nor a call."], template=CHANNELS)
    draft = {"draft_model": "scripted.gguf", "draft_max": 4, "rope_scaling": "linear", "rope_freq_scale": 0.5}
    models.add("drafted", ["Fine, ", "thank ", "you ", "very much."], engine_options=draft)
    models.write()
    port = free_ports(1)[0]
    with ServerProcess(folder / "models", f"--openai-port={port}", work=folder) as running:
        running.openai_port = port  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    base = f"http://127.0.0.1:{server.openai_port}/v1"  # type: ignore[attr-defined]
    with openai.OpenAI(base_url=base, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def talk(client: OpenAI, model: str, *messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model=model, messages=list(messages) or [USER], **options)


def rendered(client: OpenAI, model: str, *messages: Any, **options: Any) -> str:
    """The prompt that the model gets."""
    asked = {"model": model, "messages": list(messages), **options}
    base = str(client.base_url).removesuffix("v1/")
    tokens = client.post(f"{base}tokenize", body=asked, cast_to=object)["tokens"]  # type: ignore[index]
    return str(client.post(f"{base}detokenize", body={"model": model, "tokens": tokens}, cast_to=object)["prompt"])  # type: ignore[index]


def said_by(role: str, content: str) -> Any:
    return {"role": role, "content": content}


def test_system_messages_anywhere_are_one_at_the_start_for_a_strict_template(client):
    messages = [said_by("system", "One."), said_by("developer", "Two."), USER, said_by("assistant", "Hi."), said_by("developer", "Three."), USER]  # fmt: skip
    assert talk(client, "strict", *messages).choices[0].message.content == "Fine, thanks."
    assert rendered(client, "strict", *messages).startswith(
        "<|im_start|>system\nOne.\n\nTwo.\n\nThree.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    )


def test_system_messages_stay_where_they_are_for_a_template_that_takes_them(client):
    messages = [said_by("system", "One."), USER, said_by("system", "Two."), USER]
    text = rendered(client, "refusing", *messages)
    assert text.index("One.") < text.index("Hello") < text.index("Two.")
    assert text.count("<|im_start|>system") == 2


def test_a_template_without_system_messages_has_them_in_the_users_first_one(client):
    messages = [said_by("system", "One."), said_by("user", "Hello"), said_by("user", "again")]
    assert talk(client, "alternating", *messages).choices[0].message.content == "Fine, thanks."
    text = rendered(client, "alternating", *messages)  # llama.cpp joins the first two itself, by one line break
    assert re.fullmatch(r"<\|im_start\|>user\nOne\.\n+Hello\n\nagain<\|im_end\|>\n<\|im_start\|>assistant\n", text)


def test_the_error_for_a_rejected_conversation_quotes_the_templates_own_sentence(client):
    with pytest.raises(openai.BadRequestError) as caught:
        talk(client, "refusing", said_by("user", "Refuse!"))
    assert caught.value.body["message"] == (
        "Error generating stream: the chat template rejected the conversation: No, thanks."
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_and_the_answer_to_its_result(client, stream):
    answer = talk(client, "caller", tools=[RUN], stream=stream)
    if stream:
        parts = [call for part in answer for call in part.choices[0].delta.tool_calls or ()]
        assert parts[0].function.name == "run"
        arguments = "".join(part.function.arguments for part in parts)
        assert len(parts) > 2
    else:
        (call,) = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        arguments = call.function.arguments
    assert json.loads(arguments) == {"command": "ls -l /tmp"}
    called = {"id": "a", "type": "function", "function": {"name": "run", "arguments": arguments}}
    history = [
        USER,
        {"role": "assistant", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    assert talk(client, "caller", *history, tools=[RUN]).choices[0].message.content == "It is listed."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "custom": {"name": "apply_patch"}}])
def test_a_call_of_a_custom_tool_and_the_answer_to_its_result(client, stream, choice):
    answer = talk(client, "patcher", tools=[PATCH, STOP], tool_choice=choice, stream=stream)
    if stream:
        parts = [call for part in answer for call in part.choices[0].delta.tool_calls or ()]
        assert parts[0].type == "custom"
        text = "".join(part.custom["input"] for part in parts)
    else:
        (call,) = answer.choices[0].message.tool_calls
        assert (call.type, call.custom.name, answer.choices[0].finish_reason) == ("custom", "apply_patch", "tool_calls")
        text = call.custom.input
    assert text == 'one\n"two"'
    called = {"id": "a", "type": "custom", "custom": {"name": "apply_patch", "input": text}}
    history = [
        USER,
        {"role": "assistant", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    assert talk(client, "patcher", *history, tools=[PATCH]).choices[0].message.content == "It is changed."


@pytest.mark.parametrize("arguments", ["", None])
def test_a_call_in_the_history_without_arguments_has_empty_ones(client, arguments):
    function = {"name": "stop", "arguments": arguments}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": "a", "content": "done"}
    assert talk(client, "caller", USER, called, result, tools=[STOP]).choices[0].message.content == "It is listed."
    assert '{"name": "stop", "arguments": {}}' in rendered(client, "caller", USER, called, result, tools=[STOP])


def test_required_calls_keep_the_templates_own_description_of_the_tools(client):
    free = talk(client, "caller", tools=[RUN, STOP])
    for choice in ("required", {"type": "function", "function": {"name": "run"}}):
        answer = talk(client, "caller", tools=[RUN, STOP], tool_choice=choice)
        (call,) = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("run", {"command": "ls -l /tmp"})
        assert answer.choices[0].finish_reason == "tool_calls"
        if choice == "required":
            assert answer.usage.prompt_tokens == free.usage.prompt_tokens


def test_several_calls_are_permitted_unless_the_request_forbids_them(client):
    several = talk(client, "twice", tools=[RUN, STOP], tool_choice="required").choices[0]
    # After the script the model may end, or by chance call again, which the grammar permits.
    assert [call.function.name for call in several.message.tool_calls][:2] == ["run", "stop"]
    one = talk(client, "twice", tools=[RUN, STOP], tool_choice="required", parallel_tool_calls=False).choices[0]
    assert [call.function.name for call in one.message.tool_calls] == ["run"]
    assert one.finish_reason == "tool_calls"
    parts = talk(client, "twice", tools=[RUN, STOP], parallel_tool_calls=False, stream=True)
    assert {call.index for part in parts for call in part.choices[0].delta.tool_calls or ()} == {0}


def test_a_required_call_comes_after_the_reasoning(client):
    message = talk(client, "thinker", tools=[RUN], tool_choice="required").choices[0].message
    assert message.reasoning_content.strip() == "I should list it."
    assert json.loads(message.tool_calls[0].function.arguments) == {"command": "ls -l /tmp"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_that_is_cut_off_has_the_form_of_a_call(client, stream):
    answer = talk(client, "caller", tools=[RUN], tool_choice="required", max_tokens=2, stream=stream)
    if stream:
        parts = list(answer)
        calls = [call for part in parts for call in part.choices[0].delta.tool_calls or ()]
        content = "".join(part.choices[0].delta.content or "" for part in parts)
        arguments, reason = "".join(call.function.arguments for call in calls), parts[-1].choices[0].finish_reason
        name = calls[0].function.name
    else:
        (call,) = answer.choices[0].message.tool_calls
        content, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        name, arguments = call.function.name, call.function.arguments
    assert (name, arguments[:3], content or "", reason) == ("run", '{"c', "", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_not_in_the_form_of_the_template_is_content(client, stream):
    for options in ({}, {"tools": [RUN]}):
        answer = talk(client, "channels", stream=stream, temperature=1.0, **options)
        if stream:
            parts = list(answer)
            text = "".join(part.choices[0].delta.content or "" for part in parts)
            reason = parts[-1].choices[0].finish_reason
        else:
            text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert (text, reason) == ("Neither a channel nor a call.", "stop")


SCHEMA: Any = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
DEMANDS = ("required", {"type": "function", "function": {"name": "run"}})


class Said(NamedTuple):
    """An answer: its text, the arguments of its calls by name, and why it is finished."""

    text: str
    calls: dict[str, Any]
    reason: str


def ask_chat(client: OpenAI, model: str, stream: bool, **options: Any) -> Said:
    answer = talk(client, model, stream=stream, **options)
    parts = [part.choices[0] for part in answer] if stream else [answer.choices[0]]
    deltas = [part.delta if stream else part.message for part in parts]
    found = [call.function for delta in deltas for call in delta.tool_calls or ()]
    names = [function.name for function in found if function.name]
    arguments = "".join(function.arguments for function in found)
    calls = {names[0]: json.loads(arguments)} if names else {}
    return Said("".join(delta.content or "" for delta in deltas), calls, str(parts[-1].finish_reason))


def ask_response(client: OpenAI, model: str, stream: bool, **options: Any) -> Said:
    given = dict(options)
    if "tools" in given:
        given["tools"] = [{"type": "function", **tool["function"]} for tool in given["tools"]]
    if "response_format" in given:
        given["text"] = {"format": {"type": "json_schema", **given.pop("response_format")["json_schema"]}}
    if isinstance(given.get("tool_choice"), dict):
        given["tool_choice"] = {"type": "function", "name": given["tool_choice"]["function"]["name"]}
    answer: Any = client.responses.create(model=model, input=given.pop("asked", "Hello"), stream=stream, **given)
    if stream:
        *_, last = answer
        answer = last.response
    calls = {item.name: json.loads(item.arguments) for item in answer.output if item.type == "function_call"}
    return Said(answer.output_text, calls, "tool_calls" if calls else "stop")


def ask_message(client: OpenAI, model: str, stream: bool, **options: Any) -> Said:
    given = dict(options)
    if "tools" in given:
        functions = [tool["function"] for tool in given["tools"]]
        given["tools"] = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
    if "response_format" in given:
        given["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
        del given["response_format"]
    choice = given.get("tool_choice")
    if choice is not None:
        is_named = isinstance(choice, dict)
        named = {"type": "tool", "name": choice["function"]["name"]} if is_named else {}
        given["tool_choice"] = named or {"type": {"required": "any"}.get(choice, choice)}
    asked = {"model": model, "max_tokens": 200, "messages": [USER], "stream": stream, **given}
    base = str(client.base_url).removesuffix("v1/")
    with anthropic.Anthropic(base_url=base, api_key="any", max_retries=0, timeout=60) as other:
        answer: Any = other.messages.create(**asked)
        if stream:
            events = list(answer)
            starts = {e.index: e.content_block for e in events if e.type == "content_block_start"}
            deltas = [e for e in events if e.type == "content_block_delta"]
            text = "".join(e.delta.text for e in deltas if e.delta.type == "text_delta")
            arguments = "".join(e.delta.partial_json for e in deltas if e.delta.type == "input_json_delta")
            names = [block.name for block in starts.values() if block.type == "tool_use"]
            calls = {names[0]: json.loads(arguments)} if names else {}
            reason = next(e.delta.stop_reason for e in events if e.type == "message_delta")
        else:
            text = "".join(block.text for block in answer.content if block.type == "text")
            calls = {block.name: block.input for block in answer.content if block.type == "tool_use"}
            reason = answer.stop_reason
    return Said(text, calls, {"end_turn": "stop", "tool_use": "tool_calls"}.get(reason, reason))


@pytest.fixture(params=[ask_chat, ask_response, ask_message])
def ask(request: pytest.FixtureRequest, client: OpenAI) -> Callable[..., Said]:
    """Asks by one of the three APIs: `ask(model, stream, **options)`, with the options of chats."""
    return lambda model, stream, **options: request.param(client, model, stream, **options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("caller", Said("", {"run": {"command": "ls -l /tmp"}}, "tool_calls")),
        ("answerer", Said('{"answer": "it is so"}', {}, "stop")),
        ("pensive", Said('{"answer": "it is so"}', {}, "stop")),
    ],
)
def test_with_tools_and_a_format_the_answer_is_a_call_or_in_the_format(ask, model, said, stream):
    assert ask(model, stream, tools=[RUN, STOP], response_format=FORMAT) == said


def test_with_tools_and_a_format_no_other_text_is_possible(client):
    answer = talk(client, "teller", tools=[RUN], response_format=FORMAT, max_tokens=60).choices[0].message
    assert answer.tool_calls or answer.content.startswith('{"answer": "')


def test_the_answer_after_the_result_of_a_tool_is_in_the_format(client):
    called = {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    history = [
        USER,
        {"role": "assistant", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    answer = talk(client, "lister", *history, tools=[RUN], response_format=FORMAT).choices[0]
    assert (answer.message.content, answer.finish_reason) == ('{"answer": "it is listed"}', "stop")


def test_without_a_choice_of_tools_the_format_binds_the_whole_answer(ask):
    text = ask("answerer", False, tools=[RUN], tool_choice="none", response_format=FORMAT).text
    assert text == '{"answer": "it is so"}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", DEMANDS)
def test_a_format_does_not_matter_where_a_call_is_demanded(ask, choice, stream):
    said = ask("caller", stream, tools=[RUN, STOP], tool_choice=choice, response_format=FORMAT)
    assert said == Said("", {"run": {"command": "ls -l /tmp"}}, "tool_calls")


@pytest.mark.parametrize("choice", DEMANDS)
def test_a_model_that_would_write_text_calls_the_function_that_is_demanded(client, choice):
    schema = {
        "type": "object",
        "properties": {"count": {"enum": [1, 2]}},
        "required": ["count"],
        "additionalProperties": False,
    }
    run = {"type": "function", "function": {"name": "run", "parameters": schema}}
    choice_of = talk(client, "teller", tools=[run], tool_choice=choice, max_tokens=200).choices[0]
    (call, *_) = choice_of.message.tool_calls
    assert (call.function.name, choice_of.message.content, choice_of.finish_reason) == ("run", None, "tool_calls")
    assert json.loads(call.function.arguments)["count"] in (1, 2)


def test_a_format_binds_the_answer_after_the_reasoning(client):
    message = talk(client, "pensive", response_format=FORMAT).choices[0].message
    assert (message.reasoning_content.strip(), message.content) == ("I should say it.", '{"answer": "it is so"}')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("model", "before"), [("lost", ""), ("confused", "Look: ")])
def test_a_call_of_a_function_that_is_not_among_the_tools_is_content(ask, model, before, stream):
    text = before + '<tool_call>\n{"name": "walk", "arguments": {"to": "the moon"}}\n</tool_call>'
    assert ask(model, stream, tools=[RUN]) == Said(text, {}, "stop")


def messages(server: ServerProcess, **body: Any) -> Any:
    """The answer of Anthropic's API."""
    given = {"max_tokens": 50, "messages": [USER], **body}
    connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=30)  # type: ignore[attr-defined]
    with contextlib.closing(connection):
        connection.request("POST", "/v1/messages", json.dumps(given))
        return connection.getresponse().read().decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stops", "text", "reason", "sequence"),
    [
        (["tha", "x"], "Fine, ", "stop_sequence", "tha"),
        ([", th"], "Fine", "stop_sequence", ", th"),
        (["thanks!", "Fine. "], "Fine, thanks.", "end_turn", None),
        (["anks."], "Fine, th", "stop_sequence", "anks."),
    ],
)
def test_messages_name_the_stop_sequence_that_has_ended_them(server, stream, stops, text, reason, sequence):
    got = messages(server, model="strict", stop_sequences=stops, stream=stream)
    if not stream:
        document = json.loads(got)
        said = "".join(block["text"] for block in document["content"])
        assert document["usage"]["input_tokens"] + document["usage"]["cache_read_input_tokens"] > 5
        tokens = document["usage"]["output_tokens"]
    else:
        events = [json.loads(line[6:]) for line in got.splitlines() if line.startswith("data: ")]
        said = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
        last = next(event for event in events if event["type"] == "message_delta")
        document, tokens = last["delta"], last["usage"]["output_tokens"]
    assert (said, document["stop_reason"], document["stop_sequence"]) == (text, reason, sequence)
    assert tokens in ((2, 3) if sequence else (3,))


@pytest.mark.parametrize("stream", [False, True])
def test_messages_tell_the_tokens_that_were_in_the_cache(server, stream):
    asked = {"model": "strict", "stream": stream, "system": f"You are a poet, {stream}."}

    def usage() -> Any:
        got = messages(server, **asked)
        if not stream:
            return json.loads(got)["usage"]
        events = [json.loads(line[6:]) for line in got.splitlines() if line.startswith("data: ")]
        return next(event["usage"] for event in events if event["type"] == "message_delta")

    first, second = usage(), usage()
    assert second["cache_read_input_tokens"] > first["cache_read_input_tokens"]
    totals = [one["input_tokens"] + one["cache_read_input_tokens"] for one in (first, second)]
    assert totals[0] == totals[1]
    assert second["cache_creation_input_tokens"] == 0


def test_a_stop_in_the_reasoning_does_not_end_the_answer(client):
    message = talk(client, "thinker", tools=[RUN], stop=["list it"]).choices[0].message
    assert message.reasoning_content.strip() == "I should list it."
    assert len(message.tool_calls) == 1


def test_a_stop_ends_chats_and_several_choices_as_well(client):
    for count in (1, 2):
        answer = talk(client, "strict", stop="thanks", n=count)
        assert [(one.message.content, one.finish_reason) for one in answer.choices] == [("Fine, ", "stop")] * count
    choice = talk(client, "strict", stop="thanks", logprobs=True).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Fine, ", "stop")


def test_a_draft_model_proposes_tokens(client):
    assert talk(client, "drafted", temperature=0).choices[0].message.content == "Fine, thank you very much."

"""What clients of other servers send and expect: fields of theirs, browsers, probes, slashes at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from naiad.config.server.access import Api as Part
from naiad.protocol.metadata import IndexEntry, ModelState

from .fake_models import Api, given, said, served

CHAT = [{"role": "user", "content": "hello"}]
ORIGIN = "https://chat.example"


def echo(_, request, sink):
    """Answer with the sampling parameters."""
    sink.send(said(given(request, "sampling_parameters")), True)


@pytest.fixture(scope="module")
def api():
    with served(echo) as each:
        yield each


def sampling(got):
    assert got.status == 200, got.body
    return json.loads(got.json()["choices"][0]["text"])


def test_null_is_the_same_as_leaving_out(api):
    nothing = dict.fromkeys(["stream", "n", "stop", "seed", "logprobs", "echo", "max_tokens", "functions", "any"])
    assert sampling(api.ask("completions", prompt="x", **nothing)) == {"max_tokens": 16}


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_a", 0), ("typical_p", 1.0), ("mirostat", 0), ("xtc_probability", 0.0), ("models", ["a"]), ("chat_id", 1), ("options", {}), ("id", "a")],
)  # fmt: skip
def test_fields_of_other_servers_that_change_nothing_are_ignored(api, name, value):
    assert sampling(api.ask("completions", prompt="x", **{name: value})) == {"max_tokens": 16}


@pytest.mark.parametrize("name", ["top_a", "mirostat", "dry_multiplier", "xtc_probability", "ebnf", "return_token_ids"])
def test_fields_of_other_servers_that_change_the_answer_are_rejected(api, name):
    got = api.ask("completions", prompt="x", **{name: 2})
    assert got.status == 400
    assert got.json()["error"]["message"] == f"`{name}` is not supported: models here have no such setting; omit it"


def test_other_names_of_known_fields_have_their_effect(api):
    told = sampling(api.ask("completions", prompt="x", n_predict=3, repeat_penalty=1.5, grammar="root ::= 'a'"))
    assert told == {"max_tokens": 3, "repetition_penalty": 1.5, "structured_outputs": {"grammar": "root ::= 'a'"}}
    assert sampling(api.ask("completions", prompt="x", regex="a+"))["structured_outputs"] == {"regex": "a+"}
    assert sampling(api.ask("completions", prompt="x", lora_name="fine", priority=2)) == {
        "max_tokens": 16, "lora_name": "fine", "priority": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "meant"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("stops", "stop")]
)
def test_fields_that_are_misspelt_are_refused(api, name, meant):
    error = api.ask("completions", prompt="x", **{name: 1}).json()["error"]
    assert (error["message"], error["param"]) == (
        f"Unrecognized request argument supplied: {name}; did you mean `{meant}`?",
        name,
    )


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("functions", [{"name": "f"}], "use `tools` instead"),
        ("chat_template", "{{ x }}", "prompts are rendered by the model's own template"),
        ("prompt_logprobs", 1, "use `echo` and `logprobs`"),
    ],
)
def test_fields_that_would_change_the_answer_are_not_ignored(api, name, value, advice):
    error = api.ask("chat/completions", messages=CHAT, **{name: value}).json()["error"]
    assert error["message"].startswith(f"`{name}` is not supported: {advice}")
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert api.ask("chat/completions", messages=CHAT, **{name: type(value)()}).status == 200


@pytest.mark.parametrize(
    ("kind", "value"),
    [("json", {"type": "object"}), ("regex", "a+"), ("choice", ["a", "b"]), ("grammar", "root ::= x")],
)
def test_vllms_earlier_names_of_structures_are_understood(api, kind, value):
    got = sampling(api.ask("completions", prompt="x", **{f"guided_{kind}": value}))
    assert got["structured_outputs"] == {kind: value}


def test_options_that_continue_a_conversation_reach_the_model():
    with served(lambda _, request, sink: sink.send(said(given(request, "messages")), True)) as api:
        got = api.ask("chat/completions", messages=CHAT, continue_final_message=True, add_generation_prompt=False)
        told = json.loads(got.json()["choices"][0]["message"]["content"])
        assert (told["continue_final_message"], told["add_generation_prompt"]) == (True, False)


def test_paths_with_a_final_slash_head_and_health_are_answered(api):
    assert [model["id"] for model in api.request("GET", "/v1/models/").json()["data"]] == ["fake"]
    assert api.request("GET", "/v1/models/fake/").json()["id"] == "fake"
    head = api.request("HEAD", "/v1/models")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) == len(api.request("GET", "/v1/models").body)
    assert api.request("GET", "/v1").json()["error"]["message"] == "Invalid URL (GET /v1)"
    assert api.request("GET", "/health").status == api.request("GET", "/health/ready").status == 200
    api.engine.ready = False
    assert api.request("GET", "/health/ready").status == 503
    assert api.request("GET", "/health").status == api.request("POST", "/ping").status == 200  # the server runs
    api.engine.live = False
    assert api.request("GET", "/health").status == api.request("GET", "/ping").status == 503
    api.engine.ready = api.engine.live = True
    assert api.request("POST", "/health").status == 405
    api.engine.started = False
    assert api.request("GET", "/health").status == api.request("GET", "/ping").status == 503  # its models load


def test_the_version_is_that_of_the_server(api):
    assert api.request("GET", "/version").json() == {"version": api.engine.server_metadata().version}


def test_every_response_has_an_id_which_is_the_clients_if_it_sends_one(api):
    assert api.request("GET", "/v1/models", x_request_id="mine-1").headers["x-request-id"] == "mine-1"
    first, second = (api.request("GET", "/v1/nothing").headers["x-request-id"] for _ in range(2))
    assert first.startswith("req_")
    assert first != second
    assert api.request("GET", "/v1/models", x_request_id="two words").headers["x-request-id"].startswith("req_")


FUNCTION: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER: Any = {"type": "function", "function": {"name": "g"}}


def conversation_of(api: Api, *messages: Any, **options: Any) -> Any:
    got = api.ask("chat/completions", messages=[*messages, {"role": "user", "content": "x"}], **options)
    assert got.status == 200, got.body
    return json.loads(got.json()["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def repeating() -> Iterator[Api]:
    with served(lambda _, request, sink: sink.send(said(given(request, "messages")), True)) as each:
        yield each


def test_allowed_tools_are_the_only_ones_the_model_gets(repeating):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    got = conversation_of(
        repeating, tools=[FUNCTION, OTHER], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )
    assert [tool["function"]["name"] for tool in got["tools"]] == ["g"]
    assert got["tool_choice"] == "required"


def test_hosted_tools_of_a_chat_are_left_out(repeating):
    got = conversation_of(repeating, tools=[FUNCTION, {"type": "web_search"}])
    assert got["tools"] == [FUNCTION]


def test_thinking_refusals_and_text_parts_are_history(repeating):
    parts = [
        {"type": "thinking", "thinking": "Well."},
        {"type": "text", "text": "One."},
        {"type": "refusal", "refusal": "No."},
    ]
    got = conversation_of(
        repeating, {"role": "assistant", "content": parts}, {"role": "assistant", "content": "a", "reasoning": "b"}
    )
    assert got["messages"][:2] == [
        {"role": "assistant", "content": "One.\nNo.", "reasoning_content": "Well."},
        {"role": "assistant", "content": "a", "reasoning_content": "b"},
    ]


def test_calls_in_the_history_without_arguments_have_empty_ones(repeating):
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": value}} for value in ("", None, "{}")
    ]
    got = conversation_of(repeating, {"role": "assistant", "content": None, "tool_calls": calls})
    assert [call["function"]["arguments"] for call in got["messages"][0]["tool_calls"]] == ["{}"] * 3


def called(function: Any) -> Any:
    return [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}]


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"tools": [3]}, "`tools[0]` must be an object with a `type`", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "`tools[0].function` must be an object", "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "`tools[0].function.name` must be a string", "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "`tools[0].function.name` must be a string", "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "`tools[0].function.parameters` must be an object", "tools[0].function.parameters"),
        ({"tools": [FUNCTION], "tool_choice": "always"}, "`tool_choice` must be auto, none, required", "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "`tool_choice` must be auto", "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "Tool 'g' has not been passed in `tools`.", "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools"}}, "`tool_choice` must be auto", "tool_choice"),
        ({"tool_choice": "required"}, "`tool_choice` requires a call, but `tools` has no function", "tool_choice"),
        ({"messages": called({"name": "f", "arguments": "{bad"})}, "`messages[0].tool_calls[0].function.arguments` of a call of 'f' is not valid JSON", "messages[0].tool_calls[0].function.arguments"),
        ({"messages": called({"name": "f", "arguments": 3})}, "must be JSON in a string", "messages[0].tool_calls[0].function.arguments"),
        ({"messages": called({"arguments": "{}"})}, "`messages[0].tool_calls[0].function.name` must be a string", "messages[0].tool_calls[0].function.name"),
        ({"messages": [{"role": "assistant", "tool_calls": "f"}]}, "`messages[0].tool_calls` must be an array", "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": ["f"]}]}, "`messages[0].tool_calls[0]` must be an object", "messages[0].tool_calls[0]"),
        ({"include_reasoning": False}, "`include_reasoning` is not supported", "include_reasoning"),
        ({"max_tokens": 0}, "`max_tokens` must be at least 1", "max_tokens"),
    ],
)  # fmt: skip
def test_faults_of_clients_in_chats_are_named(repeating, fields, message, param):
    got = repeating.ask("chat/completions", **{"messages": CHAT, **fields})
    assert got.status == 400, got.body
    assert message in got.json()["error"]["message"]
    assert got.json()["error"]["param"] == param


def test_reasoning_has_both_names_that_clients_look_for():
    def think(_, request, sink):
        for text in ("Well, ", "yes."):
            sink.send(said("", message=[json.dumps({"reasoning_content": text})]), False)
        sink.send(said("Yes.", finish_reason=["stop"]), True)

    with served(think) as api:
        whole = api.ask("chat/completions", messages=CHAT).json()["choices"][0]["message"]
        assert whole["reasoning"] == whole["reasoning_content"] == "Well, yes."
        events = api.ask("chat/completions", messages=CHAT, stream=True).body.split(b"\n\n")
        deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events if event.startswith(b"data: {")]
        for name in ("reasoning", "reasoning_content"):
            assert "".join(delta.get(name, "") for delta in deltas) == "Well, yes."


def test_only_probes_and_preflights_need_no_key():
    with served(echo, keys=("k",), origins=(ORIGIN,)) as api:
        assert api.request("GET", "/health").status == 200
        asked = {"Origin": ORIGIN, "Access_Control_Request_Method": "POST"}
        allowed = api.request(
            "OPTIONS", "/v1/chat/completions", **asked, Access_Control_Request_Headers="authorization"
        )
        assert (allowed.status, allowed.headers["Access-Control-Allow-Origin"]) == (204, ORIGIN)
        assert allowed.headers["Access-Control-Allow-Headers"] == "authorization"
        refused = api.request("GET", "/v1/models", Origin=ORIGIN)
        assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (
            401,
            ORIGIN,
        )  # so that it can be read
        assert api.request("OPTIONS", "/v1/models", **{**asked, "Origin": "https://evil.example"}).status == 401


def test_pages_may_read_answers_and_streams_if_their_origin_is_named():
    body = json.dumps({"model": "fake", "prompt": "x", "stream": True})
    with served(echo, origins=("*",)) as api:
        got = api.request("POST", "/v1/completions", body, Origin=ORIGIN)
        assert (got.headers["Access-Control-Allow-Origin"], got.headers["Vary"]) == (ORIGIN, "Origin")
        assert got.body.endswith(b"data: [DONE]\n\n")
        assert "Access-Control-Allow-Origin" not in api.request("GET", "/v1/models").headers
    with served(echo, origins=("https://other.example",)) as api:
        assert "Access-Control-Allow-Origin" not in api.request("POST", "/v1/completions", body, Origin=ORIGIN).headers


def test_restrictions_of_kserve_hold_for_the_api_of_openai():
    header = {"Admin": "secret"}
    parts = dict.fromkeys((Part.INFERENCE, Part.MODEL_REPOSITORY, Part.METADATA), ("admin", "secret"))
    body = json.dumps({"model": "fake", "prompt": "x"})
    with served(echo, restrictions=parts) as api:
        for method, path in (
            ("POST", "/v1/completions"),
            ("POST", "/v1/models/fake/unload"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/fake"),
        ):
            refused = api.request(method, path, body if method == "POST" else "")
            assert refused.status == 403
            assert refused.json()["error"]["message"] == "This API is restricted, expecting header 'admin'"
            assert api.request(method, path, body if method == "POST" else "", **header).status == 200


def test_models_of_one_name_are_listed_by_namespace(api, monkeypatch):
    entries = [
        IndexEntry(name="fake", namespace=space, version=version, state=ModelState.READY)
        for space, version in (("/a", "1"), ("/b", "1"), ("/b", "2"))
    ]
    monkeypatch.setattr(api.engine, "ready_index", lambda: entries)
    find = api.engine._find
    monkeypatch.setattr(api.engine, "_find", lambda name, version: find(name.rpartition("::")[2], version))
    assert [model["id"] for model in api.request("GET", "/v1/models").json()["data"]] == ["/a::fake", "/b::fake"]
    assert api.request("GET", "/v1/models/%2Fb::fake").json()["id"] == "/b::fake"

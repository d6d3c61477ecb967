"""What clients of other servers send and expect: fields of theirs, browsers, probes, slashes at the end."""

from __future__ import annotations

import json

import pytest

from naiad.config.server.access import Api as Part
from naiad.protocol.metadata import IndexEntry, ModelState

from .fake_models import given, said, served

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
    "name", ["top_a", "typical_p", "repeat_penalty", "mirostat", "models", "chat_id", "options", "n_predict", "id"]
)
def test_fields_that_only_other_servers_know_are_ignored(api, name):
    assert sampling(api.ask("completions", prompt="x", **{name: 1})) == {"max_tokens": 16}


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
    assert api.request("GET", "/health").status == 503
    api.engine.ready = True
    assert api.request("POST", "/health").status == 405


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

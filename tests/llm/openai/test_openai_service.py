"""Embeddings, the list of models, keys, ports, and what is refused."""

from __future__ import annotations

import http.client
import json
import shutil
from contextlib import closing

import pytest
from support.server import ServerProcess, free_ports

from naiad.core.errors import OptionError
from naiad_llm.extension import EXTENSION
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.template import ChatTemplate

from .conftest import KEY, MODELS


def raw(port, method, path, body=b"", **headers):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def refused(port, path, **document):
    status, answer = raw(port, "POST", path, json.dumps(document))
    return status, answer["error"]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_are_returned_for_one_text_and_for_several(client, encoding):
    answer = client.embeddings.create(model="speaker", input=["four", "eleven"], encoding_format=encoding)
    if encoding == "float":
        assert [item.embedding for item in answer.data] == [[4.0, 0.5, 0.5, 0.5], [6.0, 0.5, 0.5, 0.5]]
    else:
        assert all(isinstance(item.embedding, str) for item in answer.data)
    assert [item.index for item in answer.data] == [0, 1]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (2, 2)
    assert len(client.embeddings.create(model="speaker", input="one", dimensions=2).data[0].embedding) == 2


def test_models_that_write_text_are_listed(client):
    listed = client.models.list().data
    assert [model.id for model in listed] == ["speaker", "upper"]
    assert (listed[0].object, listed[0].owned_by) == ("model", "naiad")
    assert client.models.retrieve("speaker").created == listed[0].created > 0


def test_unknown_models_are_reported_as_missing(client):
    import openai

    for ask in (
        lambda: client.models.retrieve("nobody"),
        lambda: client.models.retrieve("adder"),
        lambda: client.completions.create(model="nobody", prompt="x"),
        lambda: client.completions.create(model="nobody:fine", prompt="x"),
    ):
        with pytest.raises(openai.NotFoundError, match=r"The model `\S+` does not exist") as caught:
            ask()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("path", "document", "message", "param"),
    [
        ("chat/completions", {"messages": []}, "you must provide a `model` parameter", "model"),
        ("chat/completions", {"model": "speaker"}, "you must provide a `messages` parameter", "messages"),
        (
            "chat/completions",
            {"model": "speaker", "messages": []},
            "`messages` must hold at least one message",
            "messages",
        ),
        (
            "chat/completions",
            {"model": "speaker", "messages": [{"content": "x"}]},
            "`messages[0]` must be an object with a `role`",
            "messages[0]",
        ),
        (
            "chat/completions",
            {"model": "speaker", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "only text message is supported, but got image_url",
            "messages[0].content",
        ),
        (
            "chat/completions",
            {"model": "speaker", "messages": [{"role": "user", "content": "x"}], "top_logprobs": 2},
            "`top_logprobs` can only be used when `logprobs` is True",
            "top_logprobs",
        ),
        (
            "chat/completions",
            {"model": "upper", "messages": [{"role": "user", "content": "x"}]},
            "The model `upper` does not support chat",
            "model",
        ),
        (
            "completions",
            {"model": "speaker", "prompt": "x", "temprature": 1},
            "Unrecognized request argument supplied: temprature; did you mean `temperature`?",
            "temprature",
        ),
        (
            "completions",
            {"model": "speaker", "prompt": "x", "temperature": -1},
            "`temperature` must be at least 0, got -1",
            "temperature",
        ),
        (
            "completions",
            {"model": "speaker", "prompt": "x", "max_tokens": "many"},
            "`max_tokens` must be an integer, not a string",
            "max_tokens",
        ),
        ("completions", {"model": "speaker", "prompt": ""}, "prompt must be non-empty", "prompt"),
        ("completions", {"model": "speaker", "prompt": [1, "a"]}, "`prompt` must be a string, an array", "prompt"),
        (
            "completions",
            {"model": "speaker", "prompt": [1, 2]},
            "The model `speaker` does not support prompts of token ids: it has no input 'prompt_token_ids'",
            "prompt",
        ),
        (
            "completions",
            {"model": "speaker", "prompt": "x", "stream_options": {"include_usage": True}},
            "`stream_options` can only be used when `stream` is True",
            "stream_options",
        ),
        ("completions", {"model": "speaker", "prompt": "x", "suffix": "y"}, "suffix is not currently", "suffix"),
        ("completions", {"model": "adder", "prompt": "x"}, "The model `adder` does not generate text", "model"),
        (
            "completions",
            {"model": "speaker", "prompt": "x", "response_format": {"type": "xml"}},
            "`response_format` must be",
            "response_format",
        ),
        ("embeddings", {"model": "upper", "input": "x"}, "The model `upper` does not support embeddings", "model"),
        ("embeddings", {"model": "speaker", "input": []}, "`input` must be a non-empty string", "input"),
    ],
)
def test_malformed_requests_are_refused_in_the_form_of_openai(server, path, document, message, param):
    status, error = refused(server.openai_port, f"/v1/{path}", **document)
    assert status == 400
    assert error["message"].startswith(message)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


def test_bodies_that_are_no_objects_and_unknown_paths_are_refused(server):
    port = server.openai_port
    for body, message in ((b"{", "We could not parse the JSON body"), (b"[]", "The body of the request must be")):
        status, answer = raw(port, "POST", "/v1/completions", body)
        assert (status, answer["error"]["message"].startswith(message)) == (400, True)
    status, answer = raw(port, "GET", "/v1/nothing")
    assert (status, answer["error"]["message"]) == (404, "Invalid URL (GET /v1/nothing)")
    for path in ("/completions", "/v1/v1/completions", "/openai/v1/completions"):
        status, answer = raw(port, "POST", path, b"{}")
        assert (status, answer["error"]["message"]) == (
            404,
            f"Invalid URL (POST {path}); did you mean /v1/completions? A client's base_url must end in /v1, once",
        )
    status, answer = raw(port, "GET", "/v1/completions")
    assert (status, answer["error"]["code"]) == (405, "method_not_allowed")
    assert raw(port, "GET", "/v2/health/live")[0] == 404
    assert raw(server.http_port, "GET", "/v1/models")[0] == 404


def test_models_are_loaded_and_unloaded_in_explicit_mode_alone(server):
    status, error = refused(server.openai_port, "/v1/models/upper/unload")
    assert status in {400, 503}
    assert "explicit" in error["message"]


def test_the_main_port_serves_the_api_if_enabled_and_requires_the_keys(tmp_path):
    import openai

    keys = tmp_path / "keys"
    keys.write_text(f"# ours\n{KEY}\n")
    server = ServerProcess(
        MODELS,
        f"--openai-api-keys-file={keys}",
        "--model-control-mode=explicit",
        "--load-model=speaker",
        "--ui=true",
        work=tmp_path,
        environ={"NAIAD_OPENAI_API_KEYS": "another"},
    )
    server.command.append(f"--openai-port={server.http_port}")
    with server:
        base = f"http://127.0.0.1:{server.http_port}/v1"
        for key in (KEY, "another"):
            with openai.OpenAI(base_url=base, api_key=key, max_retries=0) as client:
                assert [model.id for model in client.models.list().data] == ["speaker"]
        with (
            openai.OpenAI(base_url=base, api_key="a wrong one", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="Incorrect API key provided") as caught,
        ):
            client.models.list()
        assert caught.value.code == "invalid_api_key"
        status, answer = raw(server.http_port, "GET", "/v1/models")
        assert (status, answer["error"]["message"][:30]) == (401, "You didn't provide an API key;")
        authorization = {"Authorization": f"Bearer {KEY}"}
        assert raw(server.http_port, "POST", "/v1/models/upper/load", **authorization)[1]["id"] == "upper"
        assert len(raw(server.http_port, "GET", "/v1/models", **authorization)[1]["data"]) == 2
        assert raw(server.http_port, "POST", "/v1/models/upper/unload", **authorization)[1]["status"] == "success"
        assert raw(server.http_port, "GET", "/v2")[0] == 200
        assert KEY not in server.log
        assert f"Started the page at http://localhost:{server.http_port}/ui" in server.log
        assert f"Started OpenAI's API at {server.http_url}" in server.log


def test_flags_name_origins_and_restrict_parts_of_the_api(tmp_path):
    port = free_ports(1)[0]
    options = [f"--openai-port={port}", "--openai-allowed-origins=https://a.example, https://b.example"]
    options += ["--http-restricted-api=model-repository:admin=secret", "--model-control-mode=explicit"]
    with (
        ServerProcess(MODELS, *options, work=tmp_path),
        closing(http.client.HTTPConnection("127.0.0.1", port)) as asking,
    ):
        for origin in ("https://b.example", "https://c.example"):
            asking.request("GET", "/v1/models", headers={"Origin": origin})
            answer = asking.getresponse()
            answer.read()
            allowed = answer.getheader("Access-Control-Allow-Origin")
            assert (answer.status, allowed) == (200, origin if origin == "https://b.example" else None)
        status, answer = raw(port, "POST", "/v1/models/upper/load")
        assert (status, answer["error"]["message"]) == (403, "This API is restricted, expecting header 'admin'")
        assert raw(port, "POST", "/v1/models/upper/load", admin="secret")[0] == 200


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"model": "m.gguf", "max_model_len": 8192}, 8192),
        ({"model": "pkg:weights/m.GGUF"}, 4096),
        ({"model": "folder"}, 2048),
        ({"model": "some/hub-name"}, 0),
        ({"model": "m.gguf", "max_model_len": "8192"}, 0),
        ([], 0),
    ],
)
def test_the_length_of_the_context_is_read_from_the_models_files(tmp_path, settings, length):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text('{"max_position_embeddings": 2048}')
    (tmp_path / "model.json").write_text(json.dumps(settings))
    assert EXTENSION.context_length(tmp_path) == length


def test_adapters_are_listed_with_their_models(tmp_path):
    import openai

    adapters = {
        "speaker": '{"fine": "a", "poems": "b", "old:poems": "c"}',
        "parts:two": '{"fine": "a"}',
        "quiet": '{"unused": "a"}',
        "broken": "no JSON",
    }
    for name, given in adapters.items():
        shutil.copytree(MODELS / "speaker", tmp_path / "models" / name)
        version = tmp_path / "models" / name / "1"
        (version / "multi_lora.json").write_text(given)
        (version / "model.json").write_text(json.dumps({"enable_lora": name != "quiet"}))
    port = free_ports(1)[0]
    options = [f"--openai-port={port}", "--openai-lora-separator=:"]
    with (
        ServerProcess(tmp_path / "models", *options, work=tmp_path / "work"),
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0) as client,
    ):
        assert [one.id for one in client.models.list()] == [
            "broken",
            "parts:two",
            "parts:two:fine",
            "quiet",
            "speaker",
            "speaker:fine",
            "speaker:poems",
            "speaker:old:poems",
        ]
        for name, adapter in (
            ("speaker:poems", "poems"),
            ("parts:two:fine", "fine"),
            ("speaker:old:poems", "old:poems"),
        ):
            assert client.models.retrieve(name).id == name
            answer = client.completions.create(model=name, prompt="sampling")
            assert json.loads(answer.choices[0].text)["lora_name"] == adapter
        for name in ("speaker:unknown", "quiet:unused", "broken:fine", "speaker:", "nobody:fine"):
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve(name)


TEMPLATE = """{% for message in messages %}
{{ message['role'] }}={{ message['content'] | tojson }};
{% if message['content'] == 'no' %}{{ raise_exception('not this') }}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant={% endif %}"""


def test_a_template_makes_prompts_for_models_without_conversations(tmp_path):
    import openai

    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    port = free_ports(1)[0]
    options = [f"--openai-port={port}", f"--openai-chat-template={tmp_path / 'chat.jinja'}"]
    with ServerProcess(MODELS, *options, work=tmp_path):
        base = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=base, api_key="any", max_retries=0) as client:
            ask = client.chat.completions.create
            answer = ask(model="upper", messages=[{"role": "user", "content": "hi"}])
            assert answer.choices[0].message.content == 'USER="HI";\nASSISTANT='
            answer = ask(model="speaker", messages=[{"role": "user", "content": "hi"}])
            assert answer.choices[0].message.content == "hi "
            with pytest.raises(openai.BadRequestError, match="The chat template rejected the conversation: not this"):
                ask(model="upper", messages=[{"role": "user", "content": "no"}])


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("{% for m in messages %}{{ m.content | tojson(ensure_ascii=True) }}{% break %}{% endfor %}", '"\\u00e9"'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=True, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ add_generation_prompt }}", "False"),
        ("{{ 1 / 0 }}", ApiError),
        ("{{ messages[7].content.text }}", ApiError),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", ApiError),
    ],
)
def test_templates_may_use_the_functions_of_hugging_face_and_may_fail(tmp_path, text, outcome):
    (tmp_path / "chat.jinja").write_text(text)
    template = ChatTemplate(tmp_path / "chat.jinja")
    said = [{"role": role, "content": "\u00e9"} for role in ("user", "assistant")]
    conversation = {"messages": said, "add_generation_prompt": False}
    if outcome is ApiError:
        with pytest.raises(ApiError, match="The chat template rejected the conversation: "):
            template.prompt(conversation)
    else:
        assert template.prompt(conversation) == outcome
    with pytest.raises(ApiError, match="needs a model with the input 'messages'"):
        template.prompt({**conversation, "continue_final_message": True})


ONE_SYSTEM = """{% for m in messages %}
{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{{ m.role }}={{ m.content }};
{% endfor %}"""
ALTERNATING = """{% for m in messages %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{{ m.role }}={{ m.content }};
{% endfor %}"""
ANY = "{% for m in messages %}{{ m.role }}={{ m.content }};\n{% endfor %}"


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        (ONE_SYSTEM, "system=one\n\ntwo;\nuser=three;\nuser=four;\n"),
        (ALTERNATING, "user=one\n\ntwo\n\nthree\n\nfour;\n"),
        (ANY, "system=one;\nuser=three;\nsystem=two;\nuser=four;\n"),
    ],
)
def test_messages_are_adapted_to_what_the_template_accepts(tmp_path, text, prompt):
    (tmp_path / "chat.jinja").write_text(text)
    said = [("system", "one"), ("user", "three"), ("system", "two"), ("user", "four")]
    messages = [{"role": role, "content": content} for role, content in said]
    assert ChatTemplate(tmp_path / "chat.jinja").prompt({"messages": messages}) == prompt


def test_a_missing_template_is_an_error(tmp_path):
    with pytest.raises(OptionError, match=r"^cannot read --openai-chat-template="):
        ChatTemplate(tmp_path / "chat.jinja")


def test_an_invalid_template_prevents_the_start(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text("{% for %}")
    server = ServerProcess(MODELS, "--openai-port=0", f"--openai-chat-template={path}", work=tmp_path, wait="")
    server.start()
    try:
        assert server.wait_exit() == 1
        assert "is not a valid Jinja template: " in server.log
    finally:
        server.kill()

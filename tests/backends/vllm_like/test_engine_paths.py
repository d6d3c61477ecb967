"""Paths of an engine's own server, for models that ask for them: llama.cpp itself, and a stand-in for vLLM's."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.server import ServerProcess, free_ports
from support.waiting import until

from .conftest import add_model
from .scripted import ScriptedModels
from .test_vllm_engine import guest_pid

pytestmark = pytest.mark.server

LLAMA = ["/apply-template", "/completion", "/infill", "/v1/audio/transcriptions"]
VLLM = ["/classify", "/pooling", "/score", "/v1/audio/transcriptions"]
ENDLESS = {"prompt": "a", "n_predict": 100_000, "ignore_eos": True}
"""Takes many minutes."""
PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FORM = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engines: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("paths")
    models = ScriptedModels(folder / "models", engines)
    models.add("said", ["It is ", "thé ", "middle."], template=PLAIN, engine_paths=LLAMA)
    models.add("infilled", ["It is."], template=PLAIN, engine_paths=["/infill"])
    models.add("plain", ["It is."], template=PLAIN)
    models.write()
    one = {"model": "tiny.gguf", "max_model_len": 120_000, "max_num_seqs": 1, "engine_paths": ["/completion"]}
    add_model(folder / "models", engines, "endless", one)
    add_model(
        folder / "models", engines, "vllm", {"model": "some/model", "enable_sleep_mode": True, "engine_paths": VLLM}
    )
    port = free_ports(1)[0]
    with ServerProcess(folder / "models", f"--openai-port={port}", work=folder) as running:
        running.openai_port = port  # type: ignore[attr-defined]
        yield running


def asked(server: ServerProcess, path: str, body: Any = "", **headers: str) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=120)) as connection:  # type: ignore[attr-defined]
        text = body if isinstance(body, str) else json.dumps(body)
        connection.request("POST", path, text, {name.replace("_", "-"): value for name, value in headers.items()})
        got = connection.getresponse()
        return got.status, dict(got.getheaders()), got.read()


def told(server: ServerProcess, path: str, **body: Any) -> Any:
    status, headers, text = asked(server, path, body)
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "application/json"), text
    return json.loads(text)


def refused(server: ServerProcess, path: str, **body: Any) -> tuple[int, str]:
    status, _, text = asked(server, path, body)
    return status, json.loads(text)["error"]["message"]


def test_llama_completes_and_fills_in(server):
    got = told(server, "/infill", model="said", input_prefix="a", input_suffix="b", n_predict=20)
    assert (got["content"], got["stop_type"], got["tokens"]) == ("It is thé middle.", "eos", [])
    got = told(server, "/completion", model="said", prompt="\n", n_predict=2, return_tokens=True, n_probs=1)
    assert (got["content"], got["stop_type"], got["tokens_predicted"]) == ("It is thé ", "limit", 2)
    assert len(got["tokens"]) == len(got["completion_probabilities"]) == 2
    assert got["truncated"] is False


def test_llama_streams_in_its_own_form(server):
    status, headers, body = asked(server, "/completion", {"model": "said", "prompt": "\n", "stream": True})
    assert (status, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    assert [event["content"] for event in events if event["content"]] == ["It is ", "thé ", "middle."]
    assert (events[-1]["stop"], "prompt_progress" in events[0]) == (True, False)


def test_llama_renders_conversations(server):
    messages = [{"role": "user", "content": "Hello"}]
    got = told(server, "/apply-template", model="said", messages=messages)
    assert got == {"prompt": "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"}


def test_errors_of_llama_are_passed_on(server):
    assert refused(server, "/infill", model="said")[0] == 400
    status, _, body = asked(
        server, "/v1/audio/transcriptions?model=said", FORM, content_type="multipart/form-data; boundary=b"
    )
    assert (status, json.loads(body)["error"]["type"]) == (501, "not_supported_error")


def test_links_are_not_fetched(server):
    for link in ("http://127.0.0.1:1/a.png", "file:///etc/passwd", {"url": "https://127.0.0.1/a"}):
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": link}]}]
        status, message = refused(server, "/apply-template", model="said", messages=messages)
        assert status == 400
        assert "links are not fetched: 'image_url' must be a data URL, not '" in message.replace("'url'", "'image_url'")
    status, message = refused(
        server, "/pooling", model="vllm", data={"data": "https://127.0.0.1/a", "data_format": "url"}
    )
    assert (status, message.endswith("'data' must be a data URL, not 'https://127.0.0.1/a'")) == (400, True)
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert told(server, "/pooling", model="vllm", messages=[{"role": "user", "content": [part]}])["path"] == "/pooling"


def test_what_was_checked_is_what_is_passed_on(server):
    body = '{"image_url": "http://127.0.0.1:1/", "image_url": "data:,"}'
    got = server.post("/v2/models/vllm/generate", {"path_request": ["/score", "application/json", body]})
    assert (got.status, "127.0.0.1:1" in got.body.decode()) == (200, False), got.body


def test_a_model_serves_no_path_that_it_does_not_name(server):
    ask = {"prompt": "a", "n_predict": 1}
    assert refused(server, "/completion", model="infilled", **ask) == (
        404,
        "Error generating stream: this model does not serve /completion, which 'engine_paths' in its model.json must name",
    )
    status, message = refused(server, "/completion", model="plain", **ask)
    assert (status, message.partition(":")[0]) == (404, "The model `plain` does not serve /completion")
    status, message = refused(server, "/infill", **ask)
    assert (status, message.partition(" here ")[0]) == (400, "you must provide a `model` parameter: 4 models")


@pytest.mark.parametrize("path", ["/slots", "/../slots", "/completion/../slots", ""])
def test_the_input_of_a_model_reaches_no_other_path(server, path):
    """Not by KServe's protocol either, whose clients choose the path freely."""
    got = server.post("/v2/models/said/generate", {"path_request": [path, "application/json", "{}"]})
    assert (got.status, "this model does not serve" in got.error) == (400, True), got.body


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_slot_of_llama(server, stream):
    guest = psutil.Process(guest_pid(server, "endless"))
    before = guest.cpu_times().user
    connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=120)
    connection.request("POST", "/completion", json.dumps({"model": "endless", "stream": stream, **ENDLESS}))
    if stream:
        assert connection.getresponse().read(6) == b"data: "
    until(lambda: guest.cpu_times().user > before + 0.5, "llama.cpp computes", 120)
    connection.close()
    got = told(server, "/completion", model="endless", prompt="a", n_predict=2)
    assert got["tokens_predicted"] == 2


def test_llama_listens_on_no_port(server):
    for model in ("said", "endless"):
        assert psutil.Process(guest_pid(server, model)).net_connections("inet") == []


def test_vllm_gets_the_request_and_nothing_of_the_client(server):
    for path in VLLM[:3]:
        got = told(server, path, model="vllm", text_1="a", text_2=["b"])
        assert (got["path"], json.loads(got["body"])) == (path, {"text_1": "a", "text_2": ["b"]})
        assert (got["tasks"], got["name"], got["has_engine"]) == (["generate", "score"], ["vllm"], True)
    _, headers, body = asked(server, "/score?model=vllm", {}, authorization="Bearer secret", cookie="secret")
    assert "secret" not in body.decode()
    assert "access-control-allow-origin" not in {name.lower() for name in headers}
    form = {"content_type": "multipart/form-data; boundary=b"}
    _, _, body = asked(server, "/v1/audio/transcriptions?model=vllm", FORM, **form)
    assert (json.loads(body)["body"], json.loads(body)["headers"]["content-type"]) == (FORM, form["content_type"])


def test_vllm_streams_and_fails(server):
    status, headers, body = asked(server, "/score", {"model": "vllm", "stream": True})
    assert (status, body) == (200, b"data: 1\n\ndata: 2\n\n")
    assert headers["Content-Type"].startswith("text/event-stream")
    status, _, body = asked(server, "/score", {"model": "vllm", "status": 422})
    assert (status, json.loads(body)["path"]) == (422, "/score")
    assert refused(server, "/score", model="vllm", fails=True) == (400, "Error generating stream: as it was told")


def test_a_client_that_leaves_disconnects_from_vllm(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.openai_port, timeout=120)
    connection.request("POST", "/pooling", json.dumps({"model": "vllm", "waits": True}))
    until(
        lambda: told(server, "/score", model="vllm")["begun"] == 1, "vLLM has it", 120
    )  # one that it has not is dropped
    connection.close()
    until(lambda: told(server, "/score", model="vllm")["left"] == 1, "vLLM was told", 120)


def test_a_sleeping_model_has_no_paths(server):
    assert asked(server, "/sleep?model=vllm")[0] == 200
    status, message = refused(server, "/score", model="vllm")
    assert (status, message.endswith("wake it up by POST /wake_up")) == (503, True)
    assert asked(server, "/wake_up?model=vllm")[0] == 200
    assert told(server, "/score", model="vllm")["path"] == "/score"


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ({"model": "tiny.gguf", "engine_paths": ["/slots"]}, ", ".join(LLAMA)),
        ({"model": "tiny.gguf", "engine_paths": "/infill"}, ", ".join(LLAMA)),
        ({"model": "some/model", "engine_paths": ["/infill"]}, ", ".join(VLLM)),
        ({"model": "a.onnx", "engine_paths": ["/score"]}, "none"),
    ],
)
def test_only_listed_paths_can_be_asked_for(tmp_path, settings, known):
    from vllm_like import settings as module

    (tmp_path / "model.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="'engine_paths' in") as raised:
        module.read(str(tmp_path), {})
    assert str(raised.value).endswith(f"has: {known}")

"""Paths of an engine's own server: what reaches the model, what the client gets, and which requests are rejected."""

from __future__ import annotations

import http.client
import json
import threading

import pytest

from naiad.core.errors import Code, NaiadError
from naiad.protocol.inference import InferResponse

from .fake_models import said, served

EVENTS = "text/event-stream"


def answer(_, request, sink):
    """Says what it was asked, or what the body tells it to."""
    path, kind, body = parts_of(request)
    given = json.loads(body) if kind == "application/json" else {}
    if given.get("fails"):
        error = NaiadError("as it was told", code=Code[given["fails"]])
        sink.send(InferResponse("fake", 1, error=error), True)
    elif given.get("stream"):
        sink.send(said("200", EVENTS, 'data: {"content": "é"}\n\n'), False)
        sink.send(said("200", EVENTS, "data: [DONE]\n\n"), not given.get("breaks"))
        if given.get("breaks"):
            sink.send(said(error="the engine has died"), True)
    elif "says" in given:
        sink.send(said(*given["says"]), False)
        sink.send(None, True)
    elif given.get("silent"):
        sink.send(None, True)
    else:
        sink.send(said("202", "application/json", json.dumps([path, kind, body])), False)
        sink.send(None, True)


def parts_of(request):
    (tensor,) = [tensor for tensor in request.inputs if tensor.name == "path_request"]
    data, parts = bytes(tensor.data), []
    while data:
        size = int.from_bytes(data[:4], "little")
        parts.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    assert tensor.shape == (len(parts),)
    return parts


@pytest.fixture(scope="module")
def api():
    with served(answer, more=["path_request"], max_json=1 << 20) as each:
        yield each


def post(api, path, document, **headers):
    return api.request("POST", path, json.dumps(document), **headers)


@pytest.mark.parametrize("path", ["/apply-template", "/classify", "/completion", "/infill", "/pooling", "/score"])
def test_the_body_reaches_the_model_without_its_name(api, path):
    got = post(api, path, {"model": "fake", "prompt": "a"})
    assert (got.status, got.headers["Content-Type"]) == (202, "application/json")
    assert got.json() == [path, "application/json", '{"prompt":"a"}']
    assert post(api, f"{path}?model=fake", {}).json() == [path, "application/json", "{}"]
    assert post(api, path, {}).status == 202  # the only one that has paths


def test_long_bodies_reach_the_model(api):
    got = post(api, "/completion", {"prompt": "word " * 60_000})
    assert json.loads(got.json()[2]) == {"prompt": "word " * 60_000}
    got = post(api, "/completion", {"prompt": "word " * 300_000})
    assert (got.status, got.json()["error"]["type"]) == (413, "invalid_request_error")


def test_the_events_of_a_stream_are_passed_on(api):
    got = post(api, "/completion", {"stream": True})
    assert got.headers["Content-Type"].startswith(EVENTS)
    assert got.body.decode() == 'data: {"content": "é"}\n\ndata: [DONE]\n\n'
    body = post(api, "/completion", {"stream": True, "breaks": True}).body.decode()
    assert json.loads(body.rstrip().rpartition("data: ")[2])["error"]["message"] == "the engine has died"


def test_a_form_reaches_the_model_that_it_names(api):
    kind = 'multipart/form-data; boundary="b"'
    form = (
        '--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{}\r\n'
        '--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
    )
    path = "/v1/audio/transcriptions"
    got = api.request("POST", path, form.format("fake"), content_type=kind)
    assert got.json() == [path, kind, form.format("fake")]
    got = api.request("POST", path, form.format("other"), content_type=kind)
    assert (got.status, got.json()["error"]["code"]) == (404, "model_not_found")
    got = api.request("POST", path, "{}", content_type="application/json")
    assert (got.status, got.json()["error"]["message"]) == (
        400,
        "The body must be a form (multipart/form-data) with the field `file`, not application/json",
    )


@pytest.mark.parametrize(("code", "status"), [("NOT_FOUND", 404), ("INVALID_ARG", 400), ("UNAVAILABLE", 503)])
def test_what_the_model_rejects_has_its_status(api, code, status):
    got = post(api, "/infill", {"fails": code})
    assert (got.status, got.json()["error"]["message"]) == (status, "as it was told")


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        ({"model": 5}, 400, "`model` must be a string"),
        ({"model": "none"}, 404, "The model `none` does not exist"),
        ({"silent": True}, 500, "The model returned no response"),
        ({"says": ["text"]}, 500, "The model returned no status, content type and body in 'text_output'"),
        ({"says": ["good", "text/plain", ""]}, 500, "The model returned no status, content type and body in 'text_output'"),
    ],
)  # fmt: skip
def test_invalid_requests_and_responses(api, document, status, message):
    got = post(api, "/completion", document)
    assert got.status == status
    assert got.json()["error"]["message"].startswith(message)


def test_models_without_paths_have_none():
    with served(answer) as api:
        got = post(api, "/infill", {"model": "fake"})
        assert got.status == 404
        assert got.json()["error"]["message"] == (
            "The model `fake` does not serve /infill: it has no string input 'path_request', which 'engine_paths' in its "
            "model.json adds"
        )
        got = post(api, "/infill", {})
        assert (got.status, got.json()["error"]["message"]) == (
            404,
            "you must provide a `model` parameter: no model here can serve /infill",
        )


@pytest.mark.parametrize(
    "path", ["/slots", "/props", "/lora-adapters", "/tools", "/cors-proxy", "/v1/load_lora_adapter", "/infill/../slots"]
)
def test_the_administration_of_engines_is_no_path(api, path):
    for method in ("GET", "POST"):
        got = api.request(method, path, "{}")
        assert (got.status, got.json()["error"]["message"]) == (404, f"Invalid URL ({method} {path})")
    assert api.request("GET", "/completion").status == 405


def test_keys_end_here():
    seen = []

    def note(engine, request, sink):
        seen.append(repr(request))
        answer(engine, request, sink)

    with served(note, more=["path_request"], keys=("secret",)) as api:
        assert post(api, "/completion", {}).status == 401
        assert seen == []
        assert post(api, "/completion", {}, authorization="Bearer secret").status == 202
        assert "secret" not in seen[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(stream):
    begun = threading.Event()

    def hold(_, __, sink):
        if stream:
            sink.send(said("200", EVENTS, "data: 1\n\n"), False)
        begun.set()

    with served(hold, more=["path_request"]) as api:
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=120)
        connection.request("POST", "/completion", "{}")
        assert begun.wait(120)
        connection.close()
        api.loop.until(lambda: api.engine.cancelled, 120)

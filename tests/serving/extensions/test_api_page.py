"""The page of the API at `/docs` and its document, of real servers: who may read them, and whether the document is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from frontends.api_page.schemas import answer_of, errors, request_of
from serving.repositories import repository
from support.server import ServerProcess

MODELS = ("identity", "every_datatype", "repeats", "versions", "raises_in_initialize")
VALIDITY = Path(__file__).parents[2] / "frontends" / "openapi" / "validity_check.py"
ADMIN = {"naiad-admin-key": "of the administrator"}


@pytest.fixture(scope="module")
def server(work):
    models = repository(work / "models", MODELS)
    with ServerProcess(models, "--exit-on-error=false", "--strict-readiness=false", work=work) as started:
        yield started


@pytest.fixture(scope="module")
def document(server):
    return server.get("/openapi.json").json()


def test_the_page_and_its_document_are_served_without_a_flag_at_the_paths_that_users_type(server):
    for path in ("/docs", "/docs/", "/v2/docs"):
        page = server.get(path)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in page.headers["content-security-policy"]
    reply = server.get("/v2/openapi.json")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert server.post("/docs", {}).status == 405
    assert server.get("/docs/more").status == 404


def test_loaded_models_are_in_the_document_and_others_are_not(document):
    models = {path.split("/")[3] for path in document["paths"] if path.startswith("/v2/models/")}
    assert models - {"{model}", "stats"} == set(MODELS) - {"raises_in_initialize"}


@pytest.mark.builds
def test_the_document_is_valid_openapi(document):
    done = subprocess.run(
        [sys.executable, VALIDITY], input=json.dumps(document), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", [f"/v2/models/{model}/{end}" for model in ("identity", "versions") for end in ("infer", "generate")]
)
def test_the_example_of_a_model_is_a_request_that_it_takes_and_the_answer_is_as_described(server, document, path):
    content = request_of(document, path)
    assert errors(document, content["schema"], content["example"]) == []
    reply = server.post(path, content["example"])
    assert reply.status == 200, reply.body
    assert errors(document, answer_of(document, path), reply.json()) == []


def test_every_datatype_is_described_as_the_server_takes_and_gives_it(server, document):
    path = "/v2/models/every_datatype/infer"
    samples = {
        "BOOL": [True, False],
        "UINT64": [0, (1 << 64) - 1],
        "INT64": [-(1 << 63), 7],
        "FP64": [0.5, -1e300],
        "BYTES": ["ä", ""],
    }
    names = {"BYTES": "STRING"}
    inputs = [
        {"name": names.get(datatype, datatype), "datatype": datatype, "shape": [1, 2], "data": data}
        for datatype, data in samples.items()
    ]
    body = {"inputs": inputs, "outputs": [{"name": f"OUT_{each['name']}"} for each in inputs]}
    assert errors(document, request_of(document, path)["schema"], body) == []
    reply = server.post(path, body)
    assert reply.status == 200, reply.body
    assert errors(document, answer_of(document, path), reply.json()) == []


def test_the_page_can_be_switched_off(tmp_path):
    with ServerProcess(repository(tmp_path / "models", ["identity"]), "--api-page=false", work=tmp_path) as server:
        for path in ("/docs", "/v2/docs", "/openapi.json", "/v2/openapi.json"):
            assert server.get(path).error == "Not Found"


def test_the_document_needs_the_headers_of_what_it_says_and_the_page_needs_none(tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    flags = ("--http-restricted-api=metadata:tensors=secret", "--http-restricted-api=model-repository:names=hidden")
    with ServerProcess(models, *flags, work=tmp_path) as server:
        assert server.get("/docs").status == 200
        assert "identity" not in server.get("/docs").body.decode()
        for headers, missing in [({}, "names"), ({"tensors": "secret"}, "names"), ({"names": "hidden"}, "tensors")]:
            reply = server.get("/openapi.json", headers)
            assert (reply.status, reply.error) == (403, f"This API is restricted, expecting header '{missing}'")
        wrong = server.get("/openapi.json", {"names": "hidden", "tensors": "guess"})
        assert wrong.status == 403
        reply = server.get("/openapi.json", {"names": "hidden", "tensors": "secret"})
        assert "/v2/models/identity/infer" in reply.json()["paths"]
        server.wait_log("header 'tensors'")


def test_a_hardened_server_names_its_models_to_the_administrator_alone(tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    environ = {"NAIAD_ADMIN_KEY": ADMIN["naiad-admin-key"]}
    with ServerProcess(models, "--hardened", work=tmp_path, environ=environ) as server:
        assert server.get("/openapi.json").status == 403
        assert "/v2/models/identity/infer" in server.get("/openapi.json", ADMIN).json()["paths"]


def test_frontend_processes_give_the_document_of_the_one_that_has_the_models(tmp_path, document):
    models = repository(tmp_path / "models", MODELS)
    with ServerProcess(
        models, "--processes=2", "--exit-on-error=false", "--strict-readiness=false", work=tmp_path
    ) as server:
        assert server.get("/docs").status == 200
        for _ in range(6):  # connections of both processes
            assert server.get("/openapi.json").json() == document


@pytest.mark.parametrize("flags", [(), ("--processes=2",)])
def test_a_model_that_is_loaded_and_unloaded_comes_and_goes(tmp_path, flags):
    models = repository(tmp_path / "models", ["identity"])
    with ServerProcess(models, *flags, "--model-control-mode=explicit", work=tmp_path) as server:
        path = "/v2/models/identity/infer"
        assert path not in server.get("/openapi.json").json()["paths"]
        assert server.post("/v2/repository/models/identity/load", {}).status == 200
        assert path in server.get("/openapi.json").json()["paths"]
        assert server.post("/v2/repository/models/identity/unload", {}).status == 200
        server.wait_for(lambda: path not in server.get("/openapi.json").json()["paths"], "the model to go")

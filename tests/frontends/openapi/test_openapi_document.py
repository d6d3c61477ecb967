"""`docs/reference/openapi.yaml` lists exactly the paths that the server routes."""

from __future__ import annotations

import itertools
import re

import pytest

from naiad.frontends.api_page.handler import DOCUMENT_PATHS, PAGE_PATHS
from naiad.frontends.kserve_http import routes
from naiad.frontends.kserve_http.routes import Endpoint, find_route
from naiad_llm import api
from naiad_llm.openai import engine_paths

from .document import DOCUMENT, filled, methods

API_PAGE = {path.decode().rstrip("/") for path in (*PAGE_PATHS, *DOCUMENT_PATHS)}
V2 = [path for path in DOCUMENT["paths"] if path.startswith("/v2") and path not in API_PAGE]
STORED = ["/v1/responses/{response}", "/v1/responses/{response}/input_items"]
OPENAI = [
    *STORED,
    "/v1/models",
    "/v1/models/{model}",
    *(f"/v1/models/{{model}}/{action}" for action in ("load", "unload")),
]


def routed() -> set[str]:
    """Every path of the server's tables and patterns, in the document's notation."""
    found = set(routes._FIXED)
    version = "/versions/{version}"
    for action, (endpoint, _) in routes._MODEL_ACTIONS.items():
        end = f"/{action}" if action else ""
        found.add(f"/v2/models/{{model}}{end}")
        if endpoint is not Endpoint.MODEL_TRACE:
            found.add(f"/v2/models/{{model}}{version}{end}")
    for repository, action in itertools.product(("", "/{repository}"), ("load", "unload")):
        found.add(f"/v2/repository{repository}/models/{{model}}/{action}")
    found.add("/v2/repository/{repository}/index")
    for kind, region, action in itertools.product(
        ("system", "cuda"), ("", "/region/{region}"), ("status", "register", "unregister")
    ):
        if region or action != "register":
            found.add(f"/v2/{kind}sharedmemory{region}/{action}")
    return found


def test_every_route_of_the_server_is_in_the_document_and_no_other():
    assert set(V2) == routed()


@pytest.mark.parametrize("path", V2)
def test_path_of_the_document_is_routed_with_the_same_verbs(path):
    route = find_route(filled(path))
    assert route is not None
    assert tuple(sorted(set(route.methods) - {"HEAD"})) == methods(path)  # HEAD goes without saying where GET is
    assert ("HEAD" in route.methods) == ("GET" in route.methods)


def test_every_endpoint_has_a_path_in_the_document():
    found = {find_route(filled(path)).endpoint for path in V2}
    assert found == set(Endpoint)


def test_openais_paths_are_those_of_the_api():
    outside = ("/rerank", "/tokenize", "/detokenize", "/sleep", "/wake_up", "/is_sleeping", *engine_paths.PATHS)
    documented = {path for path in DOCUMENT["paths"] if path.startswith(("/v1", *outside))}
    made = api.OpenAiApi(None, None, api.OpenAiSettings())
    assert documented == {*OPENAI, *made._routes}
    assert re.search(r"load\|unload", api._MODEL.pattern)


def test_the_page_is_in_the_document():
    assert {path for path in DOCUMENT["paths"] if path.startswith("/ui")} == {"/ui", "/ui/data/state"}


def test_the_page_of_the_api_is_in_the_document():
    assert set(DOCUMENT["paths"]) >= API_PAGE == {"/docs", "/v2/docs", "/openapi.json", "/v2/openapi.json"}

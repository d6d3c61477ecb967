"""The page of the API in a real browser, with a real server behind it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from frontends.console.pages import DESKTOP, PHONE
from serving.repositories import repository
from support.server import ServerProcess
from support.system_packages import require

MODELS = ("identity", "repeats", "raises_in_execute")
MARKUP = "<img src=x onerror=document.title='owned'>"
INFER, STREAM = "post-/v2/models/identity/infer", "post-/v2/models/repeats/generate_stream"
LARGEST = 300_000


@pytest.fixture(scope="module")
def server(work):
    models = repository(work / "models", MODELS)
    shutil.copytree(models / "identity", models / MARKUP.replace("/", ""))
    with ServerProcess(models, work=work) as started:
        yield started


@pytest.fixture
def page(pages, server):
    pages.url = f"http://{server.http_url}"
    return pages


def show(page, path="/docs"):
    page.browser.get("about:blank")
    page.browser.get(page.url + path)
    page.until(lambda: page.texts("main section") or page.text("#trouble"))


def inside(name, selector):
    return f"[id='{name}'] {selector}"


def open_operation(page, name):
    page.until(lambda: page.run("return Boolean(document.getElementById(arguments[0]))", name))
    page.run("document.getElementById(arguments[0]).open = true", name)
    page.until(lambda: page.texts(inside(name, "button.main")))


def send(page, name):
    page.click(inside(name, "button.main"))
    page.until(lambda: re.search(r"ms$|no response|stopped", page.text(inside(name, ".took"))))


def test_loaded_models_are_first_and_every_route_of_the_protocol_follows(page):
    show(page)
    assert page.texts("main h2")[:2] == ["loaded models", "health"]
    paths = page.texts(".operation .path")
    assert paths[0] == f"/v2/models/{MARKUP}/infer"
    assert {"/v2/health/ready", "/v2/models/{model}/infer", "/v2/repository/index", "/v2/logging"} <= set(paths)
    assert "of naiad" in page.text("h1")


def test_each_model_is_one_group_and_the_page_says_first_what_it_is_for(page):
    show(page)
    groups = "[aria-label='loaded models'] .model"
    assert page.texts(f"{groups} h3") == sorted([*MODELS, MARKUP.replace("/", "")], key=str.lower)
    assert page.texts(f"{groups}[aria-label=identity] .path") == [
        "/v2/models/identity/infer",
        "/v2/models/identity/generate",
    ]
    assert page.texts("header p")[0].startswith("Every request that this server takes")
    assert page.run("return document.querySelector('#console').hidden"), "this server has no page at /ui"
    page.fill("#filter", "identity infer")
    page.until(lambda: page.texts(f"{groups}:not([hidden]) h3") == ["identity"])


@pytest.mark.parametrize("path", ["/docs", "/v2/docs", "/docs/"])
def test_a_request_is_prepared_sent_and_answered(page, path):
    show(page, path)
    open_operation(page, INFER)
    body = page.run("return document.querySelector(arguments[0]).value", inside(INFER, "textarea"))
    assert json.loads(body)["inputs"][0] == {"name": "IN", "datatype": "FP32", "shape": [1], "data": [0.5]}
    send(page, INFER)
    assert page.text(inside(INFER, ".took")).startswith("200 OK in ")
    assert json.loads(page.text(inside(INFER, ".body")))["outputs"][0]["data"] == [0.5]


def test_an_error_is_shown_with_its_status(page):
    show(page)
    open_operation(page, INFER)
    page.fill(inside(INFER, "textarea"), '{"inputs": []}')
    send(page, INFER)
    assert page.text(inside(INFER, ".took")).startswith("400 Bad Request in ")
    assert "error" in json.loads(page.text(inside(INFER, ".body")))


def test_the_events_of_a_stream_are_shown(page):
    show(page)
    open_operation(page, STREAM)
    page.fill(inside(STREAM, "textarea"), '{"IN": [3, 0]}')
    send(page, STREAM)
    assert page.text(inside(STREAM, ".took")).startswith("200 OK in ")
    assert page.text(inside(STREAM, ".body")).count("data: ") == 3


def test_parameters_of_a_path_are_fields(page):
    name = "get-/v2/models/{model}"
    show(page)
    open_operation(page, name)
    page.fill(inside(name, "input"), "repeats")
    send(page, name)
    assert json.loads(page.text(inside(name, ".body")))["name"] == "repeats"


def test_the_command_for_curl_does_what_the_page_does(page):
    show(page)
    open_operation(page, INFER)
    page.fill(
        inside(INFER, "textarea"), '{"inputs": [{"name": "IN", "datatype": "FP32",\n "shape": [1], "data": [9008]}]}'
    )
    command = page.run("return document.querySelector(arguments[0]).textContent", inside(INFER, ".command"))
    assert command.startswith("curl ")
    require("curl")
    done = subprocess.run(["bash", "-c", f"{command} --silent"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["outputs"][0]["data"] == [9008]


def test_the_filter_finds_models_paths_and_words(page):
    show(page)
    page.fill("#filter", "identity INFER")
    visible = "return [...document.querySelectorAll('.operation:not([hidden])')].map(node => node.id)"
    page.until(lambda: INFER in page.run(visible) and len(page.run(visible)) < 6)
    page.fill("#filter", "no such operation")
    page.until(lambda: "No operation matches" in page.text())


def test_an_address_may_name_an_operation(page):
    show(page, f"/docs#{INFER}")
    page.until(lambda: page.run("return document.getElementById(arguments[0]).open", INFER))


def test_names_of_models_are_text_and_no_markup(page):
    show(page)
    page.run("for (const node of document.querySelectorAll('.operation')) node.open = true")
    page.until(lambda: page.texts(inside(INFER, "button.main")))
    assert page.run("return document.querySelectorAll('main img').length") == 0
    assert page.browser.title == "API of naiad"


def test_the_page_is_small_asks_no_other_host_and_breaks_no_rule_of_its_policy(page, server):
    page.browser.get_log("browser")
    show(page)
    open_operation(page, INFER)
    send(page, INFER)
    asked = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert {name.split("/")[2] for name in asked} == {server.http_url}
    assert len(server.get("/docs").body) < LARGEST
    assert "http://" not in server.get("/docs").body.decode().replace("http://www.w3.org/2000/svg", "")
    assert [entry["message"] for entry in page.browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_keyboards_and_screen_readers_can_use_it_at_any_size_in_both_schemes(page, axe, size, scheme):
    page.prefer(scheme)
    page.resize(*size)
    show(page)
    open_operation(page, INFER)
    open_operation(page, "get-/v2/models/{model}")
    send(page, INFER)
    assert page.fits()
    assert page.problems(axe) == []


def test_a_restricted_document_is_read_with_the_headers_that_the_user_enters(pages, tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    flags = ("--http-restricted-api=metadata:tensors=secret", "--http-restricted-api=inference:run=this")
    with ServerProcess(models, *flags, work=tmp_path) as server:
        pages.url = f"http://{server.http_url}"
        show(pages)
        assert "expecting header 'tensors'" in pages.text("#trouble")
        pages.fill("#headers", "tensors: secret\nrun: this")
        pages.click("#again")
        pages.until(lambda: pages.texts("main section"))
        open_operation(pages, INFER)
        send(pages, INFER)
        assert pages.text(inside(INFER, ".took")).startswith("200 OK in ")
        pages.browser.get("about:blank")


def test_a_page_whose_address_has_a_password_sends_requests(page):
    page.url = page.url.replace("http://", "http://ann:secret@")
    show(page)
    open_operation(page, INFER)
    send(page, INFER)
    assert page.text(inside(INFER, ".took")).startswith("200 OK in ")
    page.browser.get("about:blank")


def test_a_server_that_has_gone_is_named(pages, tmp_path):
    with ServerProcess(repository(tmp_path / "models", ["identity"]), work=tmp_path) as server:
        pages.url = f"http://{server.http_url}"
        show(pages)
        open_operation(pages, INFER)
        server.stop()
        send(pages, INFER)
        assert pages.text(inside(INFER, ".took")).startswith("no response: ")

"""The page with an engine without workers behind it, which can be in any state: many models, reloads, a server that goes."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from fakes.engine import FakeEngine, sample_statistics
from fakes.serving import LoopThread
from naiad.frontends.console.page import Console
from naiad.frontends.console.state import ConsoleState, ModelOrigin
from naiad.frontends.kserve_http.server import HttpFrontend
from naiad.protocol.metadata import IndexEntry, InstanceStatus, ModelState
from selenium.webdriver.common.by import By

from .test_ui import choose, rows, text_of, until

LONG = "a-model-with-a-name-that-somebody-was-very-fond-of-" * 3
MARKUP = "<img src=x onerror=document.title='owned'>"


class Watched(FakeEngine):
    """An engine whose index and guests are what a test says."""

    def __init__(self):
        super().__init__()
        self.entries = [self.entry(name) for name in ("add_sub", "identity")]
        self.statuses = []

    def entry(self, name, state=ModelState.READY, **fields):
        return IndexEntry(name=name, version="1", state=state, **fields)

    async def repository_index(self):
        return self.entries

    def instances(self):
        return self.statuses

    def _find(self, name, version):
        return super()._find(name.rpartition("::")[2], version)


class Site:
    def __init__(self, loop):
        self.loop = loop
        self.engine = Watched()
        self.origins = {}
        self.ui = Console(ConsoleState(self.engine, lambda: self.origins))
        self.port = 0

    def start(self):
        self.frontend = HttpFrontend(
            self.engine, address="127.0.0.1", port=self.port, fallback=self.ui.try_handle, reuse_port=True
        )
        self.port = self.loop.run(self.frontend.start())

    def stop(self):
        self.loop.run(self.frontend.stop(0))


@pytest.fixture
def site():
    with LoopThread() as loop:
        made = Site(loop)
        made.start()
        yield made
        made.stop()


@pytest.fixture
def page(browser, site):
    browser.get(f"http://127.0.0.1:{site.port}/ui")
    until(browser, lambda: len(rows(browser, "models")) == 2)
    yield browser
    browser.get("about:blank")


def request_of(page):
    return page.find_element(By.ID, "request").get_property("value")


def test_what_was_typed_for_a_model_stays_while_it_is_loaded_again(page, site):
    choose(page, "model", "identity")
    until(page, lambda: '"INPUT0"' in request_of(page) and "INPUT1" not in request_of(page))
    page.execute_script("document.getElementById('request').value = 'mine'")
    site.engine.entries = [site.engine.entry("add_sub"), site.engine.entry("identity", ModelState.LOADING)]
    until(page, lambda: rows(page, "models")[1][2] == "LOADING")
    assert page.find_element(By.ID, "model").get_property("value") == "identity"
    assert request_of(page) == "mine"
    site.engine.entries = [site.engine.entry("add_sub")]
    until(page, lambda: len(rows(page, "models")) == 1)
    until(page, lambda: '"INPUT1"' in request_of(page))


def test_a_model_that_cannot_tell_its_inputs_is_no_trouble(page, site):
    site.engine.entries = [site.engine.entry("add_sub"), site.engine.entry("gone")]
    choose(page, "model", "gone")
    until(page, lambda: "'gone' is not found" in text_of(page, "response"))


def test_models_of_one_name_are_told_apart_by_their_namespaces(page, site):
    site.engine.entries = [site.engine.entry("identity", namespace=space) for space in ("/a", "/b")]
    statistics = sample_statistics("identity")
    counts = {"/a": 5, "/b": 7}
    site.origins = {
        (f"{space}::identity", "1"): ModelOrigin(backend=space, code="", environment="") for space in counts
    }
    site.engine.all_statistics = [
        replace(statistics, namespace=space, success=replace(statistics.success, count=count))
        for space, count in counts.items()
    ]
    until(page, lambda: [cells[0] for cells in rows(page, "models")] == ["/a::identity", "/b::identity"])
    assert [cells[3] for cells in rows(page, "models")] == ["5", "7"]
    assert [cells[7] for cells in rows(page, "models")] == ["/a", "/b"]
    choose(page, "model", "/b::identity")
    until(page, lambda: '"INPUT0"' in request_of(page))


def test_a_server_that_goes_away_and_comes_back_is_noticed(page, site):
    site.stop()
    until(page, lambda: "cannot reach the server" in text_of(page, "trouble"))
    assert len(rows(page, "models")) == 2
    site.start()
    until(page, lambda: not text_of(page, "trouble"))


def test_many_models_with_long_names_and_markup_fit_and_stay_text(page, site):
    site.engine.entries = [site.engine.entry(f"model_{number}") for number in range(98)]
    site.engine.entries += [site.engine.entry(LONG, reason=LONG), site.engine.entry(MARKUP, reason=MARKUP)]
    site.origins = {(LONG, "1"): ModelOrigin(backend="python", code="model.py", environment="/" + LONG)}
    site.engine.statuses = [
        InstanceStatus(
            model=LONG, version="1", name=LONG, pid=1, restarts={MARKUP: 1}, input_byte_size=0, borrowed_outputs=0
        )
    ]
    until(page, lambda: len(rows(page, "models")) == 100)
    assert [rows(page, "models")[-1][0], page.title] == [MARKUP, "naiad"]
    assert not page.find_elements(By.CSS_SELECTOR, "td img")
    width = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    needed, there = page.execute_script(width)
    assert needed <= there


def test_marked_text_is_not_taken_away(page):
    script = "const range = document.createRange(); range.selectNodeContents(document.querySelector('#models td'));"
    script += "getSelection().removeAllRanges(); getSelection().addRange(range);"
    page.execute_script(script)
    before = text_of(page, "facts")
    until(page, lambda: text_of(page, "facts") != before)
    assert page.execute_script("return String(getSelection())") == "add_sub"


def test_a_repository_that_is_slow_to_be_listed_keeps_nobody_waiting(site):
    listed = threading.Event()

    async def repository_index():
        await asyncio.to_thread(listed.wait, 20)
        return site.engine.entries

    site.engine.repository_index = repository_index
    with ThreadPoolExecutor(1) as pool:
        state = pool.submit(get, site, "/ui/state")
        assert get(site, "/v2/health/live")[0] == 200
        assert not state.done()
        listed.set()
        assert [model["name"] for model in json.loads(state.result()[1])["models"]] == ["add_sub", "identity"]


def test_a_state_that_cannot_be_told_is_an_error_and_no_silence(site, caplog):
    async def repository_index():
        raise RuntimeError("no luck")

    site.engine.repository_index = repository_index
    assert get(site, "/ui/state") == (500, b'{"error":"internal error; the server\'s log has the details"}')
    assert "no luck" in caplog.text


def get(site, path):
    with closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()

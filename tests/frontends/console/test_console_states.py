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
from frontends.console.pages import DESKTOP, PHONE

from naiad.core.errors import InvalidRequestError
from naiad.frontends.console.page import Console, ConsoleSettings
from naiad.frontends.console.state import ConsoleState, ModelOrigin, ServerProfile
from naiad.frontends.kserve_http.server import HttpFrontend
from naiad.protocol.metadata import IndexEntry, InstanceStatus, ModelCondition, ModelState

LONG = "a-model-with-a-name-that-somebody-was-very-fond-of-" * 3
MARKUP = "<img src=x onerror=document.title='owned'>"
TRACEBACK = "Internal: ValueError: no luck; ask again\n" + "At:\n  model.py(3): initialize\n" * 30


class Watched(FakeEngine):
    """An engine whose index and guests are what a test says."""

    is_draining = False

    def __init__(self):
        super().__init__()
        self.entries = [self.entry(name) for name in ("add_sub", "identity")]
        self.statuses = []
        self.calls = {}
        self.demand = {}

    def entry(self, name, state=ModelState.READY, **fields):
        return IndexEntry(name=name, version="1", state=state, **fields)

    async def repository_index(self):
        return self.entries

    def ready_index(self):
        return [entry for entry in self.entries if entry.state is ModelState.READY]

    def instances(self):
        return self.statuses

    def call_counts(self):
        return self.calls

    def demand_states(self):
        return self.demand

    def _find(self, name, version):
        return super()._find(name.rpartition("::")[2], version)


class Facts:
    """Facts that a test says."""

    def __init__(self):
        self.found = {}

    def origins(self):
        return self.found

    def activity(self):
        return {}

    def log_lines(self, model, after):
        return []

    async def details(self, key, version):
        return {"resolution": None, "environment": None, "files": {}}

    async def packages(self, key, version):
        return []

    async def environments(self):
        entry = {"archive": f"/envs/{MARKUP}.tar.gz", "digest": "ab" * 32, "python": "3.10.4", "numpy": "1.26.4"}
        entry |= {"platform": "linux", "size": 3 << 20, "files": 9, "last_used": 0, "in_use": False}
        entry |= {"serving": ["add_sub"], "models": ["add_sub", "old"]}
        unused = {"count": 1, "size": 3 << 20}
        garbage = {"leftovers": 1 << 20, "unused": unused, "old": {**unused, "days": 30}}
        return {"store": "/store", "size": 3 << 20, "entries": [entry], "outside": [], "garbage": garbage}


class Site:
    def __init__(self, loop):
        self.loop = loop
        self.engine = Watched()
        self.facts = Facts()
        self.state = loop.run(self.make())
        self.port = 0

    async def make(self):
        profile = ServerProfile(version="9.8.7", total_memory=1 << 34, can_control=True)
        state = ConsoleState(self.engine, self.facts, profile, [], dict)
        self.console = Console(state, self.engine, ConsoleSettings(can_control=True))
        return state

    def start(self):
        self.frontend = HttpFrontend(
            self.engine, address="127.0.0.1", port=self.port, fallback=self.console.try_handle, reuse_port=True
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
        loop.run(made.state.close())


@pytest.fixture
def page(pages, site):
    pages.url = f"http://127.0.0.1:{site.port}"
    yield pages
    pages.browser.get("about:blank")


def test_typed_text_for_a_model_is_kept_while_the_page_refreshes(page, site):
    page.open("#/model/identity/1/request")
    page.click("[aria-label='send INPUT0']")
    page.fill("#input-INPUT0", "7")
    before = page.text("#facts")
    page.until(lambda: page.text("#facts") != before)
    assert page.run("return document.querySelector('#input-INPUT0').value") == "7"
    page.click("form button.main")
    page.until(lambda: page.text("#took").startswith("200"))


def test_models_of_one_name_are_told_apart_by_their_namespaces(page, site):
    site.engine.entries = [site.engine.entry("identity", namespace=space) for space in ("/a", "/b")]
    site.engine.all_statistics = [
        replace(sample_statistics("identity"), namespace=space, pending_count=count)
        for space, count in {"/a": 5, "/b": 7}.items()
    ]
    page.open()
    page.until(lambda: page.models() == ["/a::identity", "/b::identity"])
    assert [page.row(f"/{space}::identity").split()[5] for space in "ab"] == ["5", "7"]
    page.click("#models a", "/b::identity")
    page.until(lambda: page.text("h1").startswith("/b::identity"))


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_three_hundred_models_with_failures_long_names_and_markup_fit_and_stay_text(page, site, size):
    entries = [site.engine.entry(f"model_{number}") for number in range(298)]
    entries += [site.engine.entry(name, ModelState.UNAVAILABLE, reason=TRACEBACK) for name in (LONG, MARKUP)]
    site.engine.entries = entries
    site.facts.found = {(LONG, "1"): ModelOrigin(backend="python", code="model.py", environment="/" + LONG)}
    page.resize(*size)
    page.open()
    page.until(lambda: len(page.models()) == 300)
    assert set(page.models()[:2]) == {LONG, MARKUP}
    assert "model.py(3)" not in page.text("#models")
    assert page.fits()
    heights = "return [...document.querySelectorAll('#models tr')].slice(0, 2).map(row => row.offsetHeight)"
    assert max(page.run(heights)) < 300
    page.click("#models button.link")
    page.until(lambda: "model.py(3)" in page.text("#models pre"))
    assert page.run("return document.title") == "naiad (2 failed)"
    assert not page.texts("td img")


def test_the_page_shows_a_server_that_stops_returns_or_drains(page, site):
    page.open()
    page.until(lambda: len(page.models()) == 2)
    site.stop()
    page.until(lambda: "cannot reach the server" in page.text("#trouble"))
    assert len(page.models()) == 2
    site.engine.is_draining = True
    site.start()
    page.until(lambda: not page.text("#trouble"))
    page.until(lambda: page.text("#health") == "draining")


def test_selected_text_stays_selected_while_the_page_refreshes(page, site):
    page.open()
    page.until(lambda: len(page.models()) == 2)
    script = "const range = document.createRange(); range.selectNodeContents(document.querySelector('#models td'));"
    page.run(f"{script} getSelection().removeAllRanges(); getSelection().addRange(range);")
    before = page.text("#facts")
    page.until(lambda: page.text("#facts") != before)
    assert page.run("return String(getSelection())") == "add_sub"


def test_hung_and_restarted_instances_and_unloaded_models_are_told_apart(page, site):
    site.engine.entries = [
        site.engine.entry("add_sub"),
        site.engine.entry("identity", ModelState.UNAVAILABLE, reason="unloaded"),
        site.engine.entry("later", ModelState.LOADING, reason="installing 3 packages"),
    ]
    site.engine.statuses = [
        InstanceStatus(
            model="add_sub", version="1", name=f"add_sub_{state}", pid=0, state=state, restarts={MARKUP: 2},
            input_byte_size=0, borrowed_outputs=0,
        )
        for state in ("ready", "hung")
    ]  # fmt: skip
    site.engine.all_statistics = [replace(sample_statistics("add_sub"), condition=ModelCondition.DEGRADED)]
    page.open()
    page.until(lambda: page.models() == ["add_sub", "later", "identity"])
    assert "degraded" in page.row("add_sub")
    assert "1/2 ↻4" in page.row("add_sub")
    assert "installing 3 packages" in page.row("later")
    assert "unloaded" in page.row("identity")
    page.open("#/model/add_sub/1")
    page.until(lambda: MARKUP in page.text("[aria-label=instances] tbody"))


def test_a_model_that_refuses_requests_is_shown_so_with_its_figures_and_the_reason(page, site):
    """Before, it stayed green while every second request got status 500."""
    refused = f"it refuses 2 requests that each ended 3 of its processes, for 580 s. The last process: {MARKUP}"
    site.engine.all_statistics = [
        replace(sample_statistics("add_sub"), condition=ModelCondition.REFUSING, refused=refused)
    ]
    page.open()
    page.until(lambda: "refusing" in page.row("add_sub"))
    assert page.row("identity").split()[1] == "ready"
    assert "4" in page.row("add_sub").split()  # its waiting requests: the reason does not take the figures' place
    page.open("#/model/add_sub/1")
    page.until(lambda: page.text("h1").split()[-1] == "refusing")
    assert "What it refuses" in page.text()
    assert refused in page.text()


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_dormant_model_says_that_its_first_request_loads_it_and_then_follows_the_load(page, site, axe, size):
    site.engine.demand = {"identity": "dormant"}
    page.resize(*size)
    page.open()
    page.until(lambda: page.models() == ["add_sub", "identity"])
    assert page.row("identity").split()[:2] == ["identity", "dormant"]
    assert "0/0" not in page.row("identity")
    assert "A dormant model is loaded by its first request." in page.text()
    assert page.fits()
    assert page.problems(axe) == []
    page.fill("input[type=search]", "dormant")
    page.until(lambda: page.models() == ["identity"])
    page.fill("input[type=search]", "")

    page.open("#/model/identity/1")
    page.until(lambda: "The model is dormant: its first request loads it." in page.text())
    assert page.text("h1").split() == ["identity", "version", "1", "dormant"]
    page.click("[role=tab]", "Request")
    page.fill("#input-INPUT0", "7")
    site.engine.demand = {"identity": "loading"}
    page.until(lambda: page.text("h1").split()[-1] == "loading")
    site.engine.demand = {"identity": "loaded"}
    page.until(lambda: page.text("h1").split()[-1] == "ready")
    assert page.run("return document.querySelector('#input-INPUT0').value") == "7"

    page.open()
    page.until(lambda: page.row("identity").split()[1:2] == ["ready"])
    assert "dormant" not in page.text()


def test_the_store_shows_what_a_collection_would_free(page, site, axe):
    page.resize(*PHONE)
    page.open("#/environments")
    page.until(lambda: MARKUP in page.text())
    assert "4.19 MB: the same, and 1 environment not used for 30 days" in page.text()
    assert "earlier: old" in page.text()
    assert page.fits()
    assert page.problems(axe) == []


def test_a_slow_listing_of_the_repository_delays_no_other_request(site):
    listed = threading.Event()

    async def repository_index():
        await asyncio.to_thread(listed.wait, 20)
        return site.engine.entries

    site.engine.repository_index = repository_index
    with ThreadPoolExecutor(1) as pool:
        state = pool.submit(get, site, "/ui/data/state")
        assert get(site, "/v2/health/live")[0] == 200
        assert not state.done()
        listed.set()
        assert [model["name"] for model in json.loads(state.result()[1])["models"]] == ["add_sub", "identity"]


def test_a_document_that_cannot_be_made_is_an_error(site, caplog):
    async def repository_index():
        raise RuntimeError("no luck")

    site.engine.repository_index = repository_index
    assert get(site, "/ui/data/state") == (500, b'{"error":"internal error; the server\'s log has the details"}')
    assert "no luck" in caplog.text


def test_unknown_documents_and_models_are_rejected(site):
    assert get(site, "/ui/data/secrets") == (400, b'{"error":"the page has no document \'secrets\' with 0 arguments"}')
    assert get(site, "/ui/data/model/nobody/1") == (400, b"{\"error\":\"there is no version '1' of a model 'nobody'\"}")
    assert get(site, "/ui/data/history//soon") == (400, b'{"error":"\'soon\' is not a number"}')
    assert get(site, "/ui/else")[0] == 404


def test_a_model_is_controlled_and_a_failure_has_the_servers_words(site):
    own = {"naiad-console": "1"}
    assert get(site, "/ui/control/load/a%2Fb", "POST", own) == (200, b"{}")
    assert get(site, "/ui/control/unload/add_sub", "POST", own) == (200, b"{}")
    assert site.engine.loads == [("a/b", {})]
    assert site.engine.unloads == [("add_sub", False)]
    assert b"failed to load 'broken'" in get(site, "/ui/control/load/broken", "POST", own)[1]
    assert get(site, "/ui/control/load/add_sub", "GET", own)[0] == 405
    assert get(site, "/ui/control/remove/add_sub", "POST", own)[0] == 404


def test_a_document_has_the_steps_and_calls_between_models(site):
    site.engine.models["add_sub"].config = {
        "ensemble_scheduling": {"step": [{"model_name": "identity", "input_map": {"INPUT0": "X"}}]}
    }
    site.engine.calls = {("identity", "later"): 3}
    steps, calls = json.loads(get(site, "/ui/data/graph")[1])["edges"]
    assert (steps["from"], steps["to"], steps["kind"], steps["inputs"]) == (
        "add_sub",
        "identity",
        "step",
        {"INPUT0": "X"},
    )
    assert calls == {"from": "identity", "to": "later", "kind": "call", "count": 3}


def test_a_source_rejects_wrong_arguments(site):
    with pytest.raises(InvalidRequestError, match="no document 'state' with 1 arguments"):
        site.loop.run(site.state.document("state", "more"))


def get(site, path, method="GET", headers=None):
    with closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)) as connection:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()

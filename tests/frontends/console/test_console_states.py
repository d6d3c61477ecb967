"""The page with an engine without workers behind it, which can be in any state: many models, reloads, a server that goes."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from fakes.engine import FakeEngine, sample_instance, sample_statistics
from fakes.serving import LoopThread
from frontends.console.pages import DESKTOP, PHONE, SIZES

from naiad.core.errors import InvalidRequestError
from naiad.frontends.console.page import Console, ConsoleSettings
from naiad.frontends.console.state import ConsoleState, ModelOrigin, ServerProfile
from naiad.frontends.kserve_http.server import HttpFrontend
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START
from naiad.protocol.metadata import Duration, IndexEntry, ModelCondition, ModelState, TensorMetadata

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
    assert [page.cell(f"/{space}::identity", "Waiting") for space in "ab"] == ["5", "7"]
    page.click("#models a", "/b::identity")
    page.until(lambda: page.text("h1").startswith("/b::identity"))


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_three_hundred_models_with_failures_long_names_and_markup_fit_and_stay_text(page, site, axe, size):
    entries = [site.engine.entry(f"model_{number}") for number in range(298)]
    entries += [site.engine.entry(name, ModelState.UNAVAILABLE, reason=TRACEBACK) for name in (LONG, MARKUP)]
    site.engine.entries = entries
    site.facts.found = {(LONG, "1"): ModelOrigin(backend="python", code="model.py", environment="/" + LONG)}
    page.resize(*size)
    page.open()
    part = 50 if size == DESKTOP else 12
    page.until(lambda: len(page.models()) == part)
    assert set(page.models()[:2]) == {LONG, MARKUP}
    assert page.run("return document.documentElement.scrollHeight") < 3000
    assert "model.py(3)" not in page.text("#models")
    assert page.fits()
    heights = "return [...document.querySelectorAll('#models tr')].slice(0, 2).map(row => row.offsetHeight)"
    assert max(page.run(heights)) < 300
    page.click("#models button.link")
    page.until(lambda: "model.py(3)" in page.text("#models pre"))
    assert page.run("return document.title") == "naiad (2 failed)"
    assert not page.texts("td img")
    assert page.problems(axe) == []


def test_the_page_shows_a_server_that_stops_returns_or_drains(page, site, axe):
    page.open()
    page.until(lambda: len(page.models()) == 2)
    site.stop()
    page.until(lambda: "cannot reach the server since " in page.text("#trouble"))
    assert re.fullmatch(r"unreachable since \d\d:\d\d:\d\d", page.text("#health"))
    assert page.run("return document.getElementById('health').className") == "pill bad"
    shown = page.text("#health")
    assert len(page.models()) == 2
    assert page.problems(axe) == []
    page.until(lambda: page.run("return app.answered < Date.now() - 3000"))
    assert page.text("#health") == shown, "the time of the last answer, not of the last try"
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
        sample_instance("add_sub", f"add_sub_{state}", pid=0, state=state, restarts={MARKUP: 2})
        for state in ("ready", "hung")
    ]
    site.engine.all_statistics = [replace(sample_statistics("add_sub"), condition=ModelCondition.DEGRADED)]
    page.open()
    page.until(lambda: page.models() == ["add_sub", "later", "identity"])
    assert "degraded" in page.row("add_sub")
    assert page.tile("With warnings") == "1"
    assert "1/2 ↻4" in page.row("add_sub")
    assert "installing 3 packages" in page.row("later")
    assert "unloaded" in page.row("identity")
    page.open("#/model/add_sub/1")
    page.until(lambda: MARKUP in page.text("[aria-label=instances] tbody"))


def test_a_long_reason_keeps_its_end(page, site):
    folder = "/srv/" + "a-folder-with-a-long-name/" * 20
    site.engine.entries = [
        site.engine.entry("add_sub", ModelState.UNAVAILABLE, reason=f"the archive {folder}env.tar.gz does not exist")
    ]
    page.open()
    page.until(lambda: page.row("add_sub"))
    assert "the archive /srv/a-folder" in page.row("add_sub")
    assert "…" in page.row("add_sub")
    assert "env.tar.gz does not exist" in page.row("add_sub")
    line = "const line = document.querySelector('.models .line'); return line.scrollHeight <= line.clientHeight + 1"
    page.resize(1280, 800)
    page.until(lambda: page.run(line))


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


def test_a_model_whose_execute_makes_no_progress_is_shown_so_with_its_figures_and_the_reason(page, site):
    stalled = "execute of 'add_sub_0' (pid 7) has made no progress for 2 min"
    site.engine.all_statistics = [
        replace(sample_statistics("add_sub"), condition=ModelCondition.STALLED, stalled=stalled)
    ]
    site.engine.statuses = [sample_instance("add_sub", stalled_seconds=121.0)]
    page.open()
    page.until(lambda: "no progress" in page.row("add_sub"))
    assert "4" in page.row("add_sub").split()
    assert page.tile("With warnings") == "1"
    page.open("#/model/add_sub/1")
    page.until(lambda: "no progress" in page.text("[aria-label=instances] tbody"))
    assert page.text("h1").endswith("no progress")
    assert "What makes no progress" in page.text()
    assert stalled in page.text()


@pytest.mark.parametrize("size", SIZES)
def test_a_dormant_model_says_that_its_first_request_loads_it_and_then_follows_the_load(page, site, axe, size):
    site.engine.demand = {"identity": "dormant"}
    page.resize(*size)
    page.open()
    page.until(lambda: page.models() == ["add_sub", "identity"])
    assert page.row("identity").split()[:2] == ["identity", "dormant"]
    assert page.tile("Ready") == "1", "a dormant model has no process"
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


def crash(site, restarts=0, failed=0, rejected=0, reasons=None):
    """Let the engine count what went wrong with add_sub since the page's first reading."""
    before = site.engine.all_statistics[0]
    site.engine.all_statistics = [
        replace(
            before,
            fail=Duration(before.fail.count + failed, 1),
            failures=reasons or {},
            refusals={"queue_full": rejected, "invalid": 9},
        ),
        *site.engine.all_statistics[1:],
    ]
    site.engine.statuses = [sample_instance("add_sub", restarts={"exit 1": restarts})]


@pytest.mark.parametrize(
    ("counts", "state", "note"),
    [
        ({"restarts": 3, "failed": 12}, "restarted", "3 restarts, 12 failed in 5 min"),
        ({"failed": 1}, "failing", "1 failed in 5 min"),
        ({"rejected": 4}, "rejecting", "4 rejected in 5 min"),
    ],
)
def test_a_model_that_crashes_fails_or_rejects_is_amber_and_says_how_often(page, site, axe, counts, state, note):
    """Before, it was plain green between two crashes."""
    page.open()
    page.until(lambda: page.row("add_sub").split()[1:2] == ["ready"])
    crash(site, **counts)
    page.until(lambda: page.row("add_sub").split()[1:2] == [state])
    assert note in page.row("add_sub")
    assert page.run("return document.querySelector('#models .pill').className") == "pill busy"
    assert page.models() == ["add_sub", "identity"]
    assert page.tile("With warnings") == "1"
    assert page.run("return document.title") == "naiad (1 with warnings)"
    assert page.problems(axe) == []
    page.open("#/model/add_sub/1")
    page.until(lambda: note in page.text(".warning"))
    page.click(".warning button")
    page.until(lambda: page.run("return location.hash") == "#/model/add_sub/1/log")


def test_clients_that_leave_and_malformed_requests_are_no_warning(page, site):
    page.open()
    page.until(lambda: len(page.models()) == 2)
    crash(site, failed=5, reasons={"CANCELED": 5})
    before = page.text("#facts")
    page.until(lambda: page.text("#facts") != before)
    assert page.row("add_sub").split()[1] == "ready"


def test_failed_is_red_in_the_list_the_strip_and_the_plots(page, site):
    page.open()
    page.until(lambda: len(page.models()) == 2)
    figures = {"requests": 9, "failures": 2}
    site.loop.call(site.state._sampling.cancel)  # the next sample would come before a busy page has asked for this one
    site.loop.call(site.state.history.add, time.time(), {"": figures, "add_sub": figures})
    page.until(lambda: page.cell("add_sub", "Failed/s") == "2")
    red = page.run("return color('--bad')")
    colors = "return getComputedStyle(arguments[0]).color"
    assert page.tile("Failed/s") == "2"
    for selector in ("#models td.bad", ".strip dd.bad"):
        node = page.run("return document.querySelector(arguments[0])", selector)
        assert page.run(colors, node) == page.run(
            "document.body.style.color = arguments[0]; return getComputedStyle(document.body).color", red
        )
    series = page.run(
        "return Object.fromEntries(PLOTS.flatMap(spec => spec.series.map((each, i) => [each[1], new Plot(spec, 'h2').colorOf(i)])))"
    )
    assert series["failed"] == "--bad"
    assert len({series[name] for name in ("failed", "p95", "running", "waiting")}) == 4


def test_the_list_is_sorted_by_a_click_on_a_header_and_the_address_keeps_order_and_filter(page, site):
    site.engine.entries = [site.engine.entry(name) for name in ("a", "b", "c")]
    site.engine.all_statistics = [
        replace(sample_statistics(name), fail=Duration(), error_responses=0, pending_count=number)
        for name, number in (("a", 1), ("b", 3), ("c", 2))
    ]
    page.open()
    page.until(lambda: page.models() == ["a", "b", "c"])
    sort = (
        "return [...document.querySelectorAll('#main th')].map(each => each.getAttribute('aria-sort')).filter(Boolean)"
    )
    for models, direction in (
        (["b", "c", "a"], ["descending"]),
        (["a", "c", "b"], ["ascending"]),
        (["a", "b", "c"], []),
    ):
        page.click("th button", "Waiting")
        assert (page.models(), page.run(sort)) == (models, direction)
    page.click("th button", "Waiting")
    page.fill("input[type=search]", "ready")
    address = page.run("return location.hash")
    assert address == "#/?filter=ready&sort=waiting&order=descending"
    page.open(address)
    page.until(lambda: page.models() == ["b", "c", "a"])
    assert page.run("return document.querySelector('input[type=search]').value") == "ready"
    page.click("#models td:nth-child(3)")
    page.until(lambda: page.run("return location.hash") == "#/model/b/1")
    page.click("a", "← All models")
    page.until(lambda: page.models() == ["b", "c", "a"])


def test_many_models_are_shown_in_parts_below_headers_that_stay(page, site):
    site.engine.entries = [site.engine.entry(f"model_{number:03}") for number in range(203)]
    page.open()
    page.until(lambda: len(page.models()) == 50)
    page.run("window.scrollTo(0, 1200)")
    top = "const { top } = document.querySelector('#main th').getBoundingClientRect(); const { bottom } = document.querySelector('header').getBoundingClientRect(); return [Math.round(top), Math.round(bottom)]"
    head, header = page.run(top)
    assert head == header
    assert page.text(".parts span") == "1 to 50 of 203"
    for _ in range(4):
        page.click(".parts button", "Next")
    page.until(lambda: page.models() == ["model_200", "model_201", "model_202"])
    assert page.run("return location.hash") == "#/?from=201"
    assert page.run("return document.querySelector('.parts button:last-child').disabled")
    page.fill("input[type=search]", "model_007")
    page.until(lambda: page.models() == ["model_007"])
    assert page.run("return document.querySelector('.parts').offsetHeight") == 0


def test_tokens_are_shown_where_a_model_makes_some(page, site):
    page.open()
    page.until(lambda: page.tile("Ready") == "2")
    assert page.tile("Tokens/s") == ""
    assert "Tokens/s" not in page.text(".strip")


def test_python_and_version_of_a_model_are_columns(page, site):
    site.engine.entries = [replace(site.engine.entry("add_sub"), version="3")]
    site.facts.found = {("add_sub", "3"): ModelOrigin(backend="python", code="m.py", environment="e", python="3.12.4")}
    page.open()
    page.until(lambda: page.cell("add_sub", "Python") == "3.12.4")
    assert page.cell("add_sub", "Version") == "3"
    page.fill("input[type=search]", "3.12")
    page.until(lambda: page.models() == ["add_sub"])


@pytest.mark.parametrize("size", SIZES)
def test_a_reason_keeps_what_was_probably_meant(page, site, size):
    hint = "did you mean 'max_batch_size'?"
    cause = f"cannot read config.pbtxt of 'add_sub': line 3 has the unknown field 'max_batch_siz' {'and more ' * 60}"
    site.engine.entries = [site.engine.entry("add_sub", ModelState.UNAVAILABLE, reason=f"{cause}; {hint}")]
    page.resize(*size)
    page.open()
    page.until(lambda: page.text(".hint") == hint)
    assert "unknown field 'max_batch_siz'" in page.row("add_sub")


PIXELS = bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30, 40, 50, 60, 70, 80, 90])
"""Two lines of three pixels."""


def picture():
    """The pixels as PNG."""
    rows = b"".join(b"\0" + PIXELS[9 * row : 9 * row + 9] for row in range(2))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 3, 2, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def offer(site, datatype, shape):
    """Let the model `identity` take one tensor."""
    model = site.engine.models["identity"]
    tensor = TensorMetadata(name="INPUT0", datatype=datatype, shape=shape, required=True)
    model.inputs, model.outputs = (tensor,), (replace(tensor, name="OUTPUT0"),)


def upload(page, *files):
    page.open("#/model/identity/1/request")
    page.until(lambda: page.run("return document.querySelector('input[type=file]') !== null"))
    page.browser.find_element("css selector", "input[type=file]").send_keys("\n".join(map(str, files)))
    page.until(lambda: page.text(".files [role=status]"))
    return page.text(".files [role=status]")


def send(page, site):
    before = len(site.engine.requests)
    page.click("form button.main")
    page.until(lambda: page.text("#took").startswith("200"))
    (request,) = site.engine.requests[before:]
    (tensor,) = request.inputs
    return tuple(tensor.shape), bytes(tensor.data)


CHANNELS_FIRST = PIXELS[0::3] + PIXELS[1::3] + PIXELS[2::3]


@pytest.mark.parametrize(
    ("shape", "sent", "pixels"),
    [
        ((-1, -1, 3), (2, 3, 3), PIXELS),
        ((-1, -1, -1, 3), (1, 2, 3, 3), PIXELS),
        ((3, -1, -1), (3, 2, 3), CHANNELS_FIRST),
        ((-1, 2, 3, 3), (1, 2, 3, 3), PIXELS),
    ],
)
def test_the_pixels_of_a_picture_are_sent_where_the_shape_has_them(page, site, tmp_path, shape, sent, pixels):
    file = tmp_path / "cat.png"
    file.write_bytes(picture())
    offer(site, "UINT8", shape)
    assert upload(page, file) == "cat.png: 3 \u00d7 2 pixels, RGB"
    assert page.run("return document.querySelector('canvas.preview').width") == 3
    assert send(page, site) == (sent, pixels)
    page.click("summary", "The same request as a command")
    page.until(lambda: page.texts(".copy pre"))
    (python,) = page.texts(".copy pre")
    assert "from PIL import Image" in python
    assert 'np.asarray(Image.open("cat.png").convert("RGB"))' in python
    compile(python, "sample", "exec")
    page.click(".files button", "Remove")
    page.until(lambda: page.text("fieldset textarea") is not None and not page.texts(".files canvas"))


def texts_of_samples(page):
    page.click("summary", "The same request as a command")
    page.until(lambda: page.texts(".copy pre"))
    return page.texts(".copy pre")


@pytest.mark.parametrize(("data_type", "identifier"), [("TYPE_STRING", "1"), ("TYPE_UINT64", 1)])
def test_a_request_to_a_model_with_sequences_is_a_sequence_of_its_own(page, site, data_type, identifier):
    offer(site, "INT32", (1,))
    control = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": data_type}
    site.engine.models["identity"].config["sequence_batching"] = {
        "control_input": [{"name": "ID", "control": [control]}]
    }
    page.open("#/model/identity/1/request")
    page.until(lambda: page.texts("legend"))
    send(page, site)
    request = site.engine.requests[-1]
    assert (request.correlation_id, request.flags) == (identifier, SEQUENCE_START | SEQUENCE_END)
    curl, python, _ = texts_of_samples(page)
    assert f'"sequence_id":{json.dumps(identifier)},"sequence_start":true,"sequence_end":true' in curl
    assert f"sequence_id={json.dumps(identifier)}, sequence_start=True, sequence_end=True" in python
    compile(python, "sample", "exec")


def test_the_sample_of_python_sends_bf16_as_the_client_takes_it(page, site):
    offer(site, "BF16", (2,))
    page.open("#/model/identity/1/request")
    page.until(lambda: page.texts("legend"))
    python = texts_of_samples(page)[1]
    assert "import ml_dtypes\n" in python
    assert "np.array([0, 0], ml_dtypes.bfloat16)" in python
    compile(python, "sample", "exec")


def test_a_picture_is_scaled_to_a_fixed_shape(page, site, tmp_path):
    file = tmp_path / "cat.png"
    file.write_bytes(picture())
    offer(site, "UINT8", (-1, 4, 6, 3))
    assert upload(page, file) == "cat.png: 3 \u00d7 2 pixels, scaled to 6 \u00d7 4, RGB"
    shape, pixels = send(page, site)
    assert (shape, len(pixels)) == ((1, 4, 6, 3), 72)


def test_the_bytes_of_files_are_sent_as_strings_and_as_numbers(page, site, tmp_path):
    first, second = tmp_path / "a.bin", tmp_path / "b.bin"
    first.write_bytes(b"\xff\x00\xfe")
    second.write_bytes(b"text")
    offer(site, "BYTES", (-1,))
    assert upload(page, first, second) == "a.bin, 3 B; b.bin, 4 B"
    assert send(page, site) == ((2,), b"\x03\0\0\0\xff\x00\xfe\x04\0\0\0text")
    offer(site, "UINT8", (-1,))
    assert upload(page, first) == "a.bin, 3 B"
    assert send(page, site) == ((3,), b"\xff\x00\xfe")


@pytest.mark.parametrize(
    ("datatype", "shape", "problem"),
    [
        ("UINT8", (4,), "INPUT0: a.bin has 3 bytes, which do not fill the shape [4]"),
        ("BYTES", (2,), "INPUT0: the shape [2] has no place for 1 file"),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_typed_values_stay(page, site, tmp_path, axe, datatype, shape, problem):
    file = tmp_path / "a.bin"
    file.write_bytes(b"abc")
    offer(site, datatype, shape)
    assert upload(page, file) == problem
    assert page.run("return document.querySelector('fieldset textarea').offsetHeight") > 0
    assert page.problems(axe) == []


def test_other_inputs_take_no_files(page, site):
    page.open("#/model/add_sub/1/request")
    page.until(lambda: page.texts("legend"))
    assert page.run("return document.querySelectorAll('input[type=file]').length") == 0


def test_the_numbers_of_calls_are_beside_other_lines_and_each_other(page, site):
    site.engine.calls = {(f"router_{a}", f"model_{b}"): 1000 * (a + 1) * (b + 3) for a in range(3) for b in range(4)}
    page.open("#/graph")
    page.until(lambda: len(page.texts(".graph .small")) >= 12)
    overlaps = """
        const boxes = [...document.querySelectorAll(".graph rect.label")].map(each => each.getBBox());
        return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height)).length;
    """
    assert page.run(overlaps) == 0
    assert page.run("return document.querySelectorAll('.graph rect.label').length") == 12


def test_an_unknown_page_says_so(page, site):
    for route in ("#/nothing", "#/model/add_sub", "#/graph/more", "#/%E0%A4%A"):
        page.open(route)
        page.until(lambda: "There is no page" in page.text())
        assert route in page.text()
    page.click("main a", "All models")
    page.until(lambda: len(page.models()) == 2)


def test_values_are_told_at_the_sample_under_the_crosshair(page, site):
    page.open()
    figures = {"requests": [1, 2, 3], "failures": [0, 0, 0]}
    script = """
        const [figures, done] = arguments;
        const plot = new Plot(PLOTS[0], "h2");
        document.querySelector("main").prepend(plot.node);
        plot.draw({ time: [1000, 1030, 1060], figures }, 60);
        setTimeout(() => {
          const { chart } = plot;
          const at = chart.valToPos(1040, "x");  // nearer to the second sample
          const box = chart.over.getBoundingClientRect();
          chart.over.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + at, clientY: box.top + 20, bubbles: true }));
          setTimeout(() => done([chart.cursor.left - chart.valToPos(1030, "x"), plot.area.querySelector(".tip").innerText]), 50);
        }, 50);
    """
    distance, tip = page.browser.execute_async_script(script, figures)
    assert abs(distance) < 1
    assert "requests 2/s" in tip
    assert re.search(r"\b\d\d:\d\d:\d\d\b", tip)


@pytest.mark.parametrize("size", SIZES)
def test_each_plot_has_times_below_it(page, site, size):
    page.resize(*size)
    page.open()
    script = """
        const [seconds, done] = arguments;
        const plot = new Plot(PLOTS[0], "h2");
        document.querySelector(".plots").prepend(plot.node);
        plot.draw({ time: [7200 - seconds, 7200], figures: { requests: [1, 2] } }, seconds);
        setTimeout(() => done(plot.chart.axes[0]._values.filter(Boolean)), 50);
    """
    for seconds in (60, 300, 900, 3600):
        times = page.browser.execute_async_script(script, seconds)
        assert len(times) >= 2, seconds
        assert len(set(times)) == len(times), seconds


def test_the_plots_of_a_model_are_in_two_rows_and_a_wide_window_is_used(page, site):
    page.resize(1920, 1080)
    page.open("#/model/add_sub/1")
    page.until(lambda: page.run("return document.querySelectorAll('.plot canvas').length") >= 5)
    tops = "return [...new Set([...document.querySelectorAll('.plot')].filter(each => !each.hidden).map(each => each.offsetTop))].length"
    page.until(lambda: page.run(tops) == 2)
    assert page.run("return document.querySelector('main').offsetWidth") > 1800
    page.resize(*DESKTOP)
    page.until(lambda: page.run(tops) == 2)


def test_two_durations_have_one_unit(page, site):
    page.open()
    pairs = [(8.7, 34.8), (5, 10), (934, 2360), (0.42, 0.5), (5, None)]
    texts = ["8.7 / 34.8 ms", "5.0 / 10.0 ms", "0.93 / 2.36 s", "0.42 / 0.50 ms", "5.00 ms"]
    assert [page.run("return pairOf(arguments[0])", pair) for pair in pairs] == texts


def test_the_store_shows_what_a_collection_would_free(page, site, axe):
    page.resize(*PHONE)
    page.open("#/environments")
    page.until(lambda: MARKUP in page.text())
    assert "4.19 MB: the same, and 1 environment not used for 30 days" in page.text()
    assert "earlier: old" in page.text()
    assert page.fits()
    assert page.problems(axe) == []


@pytest.mark.parametrize(
    "route", ["#/", "#/activity", "#/graph", "#/environments", "#/model/identity/1", "#/model/identity/1/request"]
)
def test_missing_values_are_not_shown_as_words(page, site, route):
    page.open(route)
    page.until(lambda: page.text("#facts") and "…" not in page.texts("main .empty"))
    assert re.findall(r"\b(?:null|undefined|NaN)\b", page.text("body")) == []


def test_the_page_of_the_api_is_not_linked_where_the_server_has_none(page, site):
    page.open()
    page.until(lambda: page.text("#facts"))
    assert page.text("footer") == page.text("#facts")


def test_a_long_error_of_a_request_is_shown_line_by_line_and_does_not_widen_the_page(page, site):
    lines = ["ValueError: no luck; At:", f"/{LONG.replace('-', '')}/model.py(3): execute"]

    def submit(request, sink):
        raise InvalidRequestError("\n  ".join(lines))

    site.engine.submit = submit
    page.open("#/model/identity/1/request")
    page.click("[aria-label='send INPUT0']")
    page.fill("#input-INPUT0", "7")
    page.click("form button.main")
    page.until(lambda: page.text("main p.error"))
    assert page.text("main p.error").splitlines() == lines
    assert page.fits()


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
    assert get(site, "/ui/else") == (404, b'{"error":"there is no page /ui/else; the page is at /ui"}')


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
    described = {key: steps[key] for key in ("from", "to", "kind", "inputs")}
    assert described == {"from": "add_sub", "to": "identity", "kind": "step", "inputs": {"INPUT0": "X"}}
    assert calls == {"from": "identity", "to": "later", "kind": "call", "count": 3}


def test_a_source_rejects_wrong_arguments(site):
    with pytest.raises(InvalidRequestError, match="no document 'state' with 1 arguments"):
        site.loop.run(site.state.document("state", "more"))


def get(site, path, method="GET", headers=None):
    with closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)) as connection:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()

"""The page in a real browser, with a real server behind it."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from frontends.console.pages import DESKTOP, PHONE
from selenium.webdriver.common.keys import Keys
from support.server import ServerProcess
from support.system_packages import require
from support.threads import in_thread

OWN_MODELS = Path(__file__).parent / "models"
LANGUAGE_MODELS = Path(__file__).parents[2] / "llm" / "openai" / "models"
PASSWORD = "a secret: of the page"
SERVED_BYTES = 200_000
AUTHORIZED = {"Authorization": "Basic " + base64.b64encode(f"anybody:{PASSWORD}".encode()).decode()}


@pytest.fixture(scope="module")
def server(work: Path) -> Iterator[ServerProcess]:
    repository, secret = work / "models", work / "password"
    secret.write_text(f"{PASSWORD}\n")
    for source in (LANGUAGE_MODELS, OWN_MODELS):
        shutil.copytree(source, repository, dirs_exist_ok=True)
    flags = ("--ui=true", "--ui-control=true", f"--ui-password={secret}", "--model-control-mode=explicit")
    with ServerProcess(
        repository, *flags, "--load-model=*", "--exit-on-error=false", "--strict-readiness=false", work=work
    ) as started:
        yield started


@pytest.fixture
def page(pages, server):
    pages.url = f"http://anybody:{PASSWORD.replace(' ', '%20').replace(':', '%3A')}@{server.http_url}"
    return pages


def add(server, number):
    reply = server.post(
        "/v2/models/adder/infer", {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [number]}]}
    )
    assert reply.status == 200


def test_models_are_listed_with_failed_ones_first_and_one_line_each(page):
    page.open()
    page.until(lambda: len(page.models()) == 6)
    assert page.models()[0] == "broken"
    # Other tests kill a process, and let requests fail: those models are before the healthy ones.
    healthy = [name for name in page.models() if page.row(name).split()[1] == "ready"]
    assert "adder" in healthy
    assert healthy == sorted(healthy) == page.models()[-len(healthy) :]
    assert page.row("broken").split()[:2] == ["broken", "failed"]
    assert "no weights at all" in page.row("broken")
    assert "Somebody has to fetch" not in page.row("broken")
    assert "ready" in page.row("adder")
    page.click("#models button.link")
    page.until(lambda: "initialize" in page.text("#models pre"))
    assert page.text("#health") == "ready"
    assert (page.tile("Ready"), page.tile("Failed")) == ("5", "1")
    page.until(lambda: " of " in page.text(".strip .memory dd"))


def test_models_are_filtered_and_the_filter_stays(page):
    page.open()
    page.fill("input[type=search]", "ready UPP")
    page.until(lambda: page.models() == ["upper"])
    page.fill("input[type=search]", "no such model")
    page.until(lambda: "No model matches" in page.text())
    page.fill("input[type=search]", "")
    page.until(lambda: len(page.models()) == 6)


def test_a_request_is_offered_by_datatype_sent_and_its_response_shown(page):
    page.open("#/model/caller/1/request")
    page.until(lambda: page.texts("legend")[:1] != [])
    titles = ["IN FP32 [1]", "HALF FP16 [-1], optional", "FLAGS BOOL [2], optional"]
    assert [" ".join(text.split()) for text in page.texts("legend")] == titles
    page.fill("#input-IN", "41")
    page.click("legend input")
    page.until(lambda: page.run("return document.querySelector('legend input').checked"))
    page.fill("[aria-label='shape of HALF']", "3")
    page.fill("#input-HALF", "0.5, -1.25, 6e-5")
    page.click("form button.main")
    page.until(lambda: page.text("#took").startswith("200 in "))
    assert "42" in page.text("#response table")
    assert "1, -2.5, 0.00012" in page.text("#response table")
    page.click("#response button", "JSON")
    assert '"name": "OUT"' in page.text("#response-json")
    page.click("summary", "The same request as a command")
    page.until(lambda: len(page.texts(".copy pre")) == 3)
    _, python, command = page.texts(".copy pre")
    assert 'client.InferInput("HALF", [3], "FP16")' in python
    assert "--input 'IN=[41]'" in command
    compile(python, "sample", "exec")


def test_the_sample_of_curl_works_as_it_is(page, server):
    import shlex
    import subprocess

    page.open("#/model/adder/1/request")
    page.fill("#input-IN", "9007")
    page.click("summary", "The same request as a command")
    page.until(lambda: len(page.texts(".copy pre")) == 3)
    command = shlex.split(page.texts(".copy pre")[0])
    assert command[0] == "curl"
    require("curl")
    assert '"data":[9008' in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_wrong_value_is_named_before_anything_is_sent(page):
    page.open("#/model/adder/1/request")
    page.fill("#input-IN", "many")
    page.click("form button.main")
    page.until(lambda: "IN: 'many' is not a value of FP32" in page.text("#response"))


def test_a_decoupled_model_gets_its_required_inputs_alone_and_each_response_is_shown(page):
    page.open("#/model/speaker/1/request")
    page.click("[aria-label='send text_input']")
    page.fill("#input-text_input", "a b")
    for name, value in (("stream", "true"), ("sampling_parameters", '{"max_tokens": 9}'), ("return_logprobs", "false")):
        page.click(f"[aria-label='send {name}']")
        page.fill(f"#input-{name}", value)
    page.click("form button.main")
    page.until(lambda: page.text("#took").startswith("2 responses in "))
    rows = [text.split() for text in page.texts("#response tbody tr")]
    assert ["text_output", "BYTES", "2", "a", "b"] in rows
    assert ["finish_reason", "BYTES", "2", "None,", "stop"] in rows
    page.click("#response button", "JSON")
    assert len(page.text("#response-json").splitlines()) == 2


def test_a_chat_has_markdown_figures_and_a_system_prompt_and_text_is_never_markup(page):
    page.open("#/model/speaker/1/chat")
    page.fill("details textarea", "be brief")
    page.press(".composer textarea", "**bold**", Keys.SHIFT + Keys.ENTER, Keys.NULL, "`x<b>y</b>`", Keys.ENTER)
    page.until(lambda: page.texts(".composer button") == ["Send"] and "token" in page.text(".figures"))
    assert page.text(".say.user") == "you:\n**bold**\n`x<b>y</b>`"
    assert page.texts(".say.model strong") == ["bold"]
    assert page.texts(".say.model code") == ["x<b>y</b>"]
    assert not page.texts(".say b")
    assert re.fullmatch(r"first token after [\d.,]+ m?s, (?:[\d.,]+ (?:k )?tokens/s, )?2 tokens", page.text(".figures"))
    page.press(".composer textarea", "conversation", Keys.ENTER)
    page.until(lambda: "be brief" in page.text(".say.model:last-child"))
    page.press(".composer textarea", "fail", Keys.ENTER)
    page.until(lambda: "this model fails when it is told to" in page.text(".talk .error"))


def test_a_chat_is_stopped_and_a_new_one_is_not_blocked_by_the_old(page):
    page.open("#/model/speaker/1/chat")
    page.press(".composer textarea", "wait", Keys.ENTER)
    page.click(".composer button", "Stop")
    page.until(lambda: "stopped" in page.text(".figures"))
    page.press(".composer textarea", "wait", Keys.ENTER)
    page.until(lambda: page.text(".composer button") == "Stop")
    page.click("button", "New chat")
    page.until(lambda: page.text(".composer button") == "Send" and not page.texts(".say"))
    page.press(".composer textarea", "hello", Keys.ENTER)
    page.until(lambda: "hello" in page.text(".say.model"))


def test_a_chat_is_offered_for_models_that_generate_only(page):
    page.open("#/model/upper/1")
    page.click("[role=tab]", "Chat")
    page.press(".composer textarea", "loud", Keys.ENTER)
    page.until(lambda: "LOUD" in page.text(".say.model"))
    page.open("#/model/adder/1")
    page.until(lambda: "Request" in page.texts("[role=tab]"))
    assert not {"Chat", "Embeddings"} & set(page.texts("[role=tab]"))


def test_two_texts_are_compared(page):
    page.open("#/model/speaker/1/embed")
    for number in (1, 2):
        page.fill(f"[aria-label={'First' if number == 1 else 'Second'}\\ text]", "the same")
    page.click("form button.main")
    page.until(lambda: page.text("#similarity") == "1.000")


def test_a_models_page_shows_how_it_is_run(page, server):
    page.open("#/model/caller/1")
    page.until(lambda: " MB" in page.text("[aria-label=instances] tbody"))
    instance = page.text("[aria-label=instances] tbody")
    assert any(str(child.pid) in instance for child in server.children())
    page.click("summary", "Packages")
    page.until(lambda: "numpy " in page.text("details .tree"))
    page.click("[role=tab]", "Explain")
    assert "model file" in page.text(".steps")
    assert page.texts(".steps .found")
    page.press("#tab-explain", Keys.ARROW_LEFT)
    assert page.run("return document.activeElement.id") == "tab-configuration"
    assert '"name": "caller"' in page.text("#panel")
    assert "config.pbtxt" in page.text("#panel")


def test_the_log_of_a_model_is_live(page, server):
    page.open("#/model/caller/1/log")
    page.until(lambda: "the caller is about to call" in page.text(".log .W"))
    assert "loading: caller:1" in page.text(".log")
    assert "adder" not in page.text(".log")
    assert server.post("/v2/repository/models/caller/load").status == 200
    os.kill(caller_pid(server), signal.SIGKILL)
    page.until(lambda: "is restarted" in page.text(".log"))
    # Once the process is replaced, the model is ready again, but not green.
    page.open()
    page.until(lambda: page.row("caller").split()[1:3] == ["restarted", "1"])
    assert "1 restart in 5 min" in page.row("caller")
    assert page.run("return stateOf(app.state.models.find(each => each.name === 'caller'))") == ["restarted", "busy"]


def caller_pid(server):
    document = server.get("/ui/data/model/caller/1", AUTHORIZED).json()
    pid = document["instances"][0]["pid"]
    assert pid  # 0 while it is restarted: a signal to that would reach all processes of this group
    return pid


def test_a_tab_appears_when_the_state_of_the_server_comes_after_the_model(page):
    page.open("#/")
    page.until(lambda: page.run("return Boolean(app.state)"))
    page.run(
        "const late = { ...app.state, models: [] };"
        "Object.defineProperty(app, 'state', { get: () => late, set: () => {}, configurable: true });"
        "location.hash = '#/model/upper/1';"
    )
    page.until(lambda: "Request" in page.texts("[role=tab]"))
    assert "Chat" not in page.texts("[role=tab]")
    page.run("delete app.state;")  # the next one that comes is shown
    page.until(lambda: "Chat" in page.texts("[role=tab]"))


def test_a_model_is_unloaded_and_loaded_again(page):
    page.open("#/model/upper/1")
    page.click("button.danger", "Unload")
    page.click("dialog button", "Unload")
    page.until(lambda: page.text("h1 .pill") == "unloaded")
    assert page.texts("[role=tab]")[:2] == ["Overview", "Log"]
    page.click("button", "Load")
    page.until(lambda: page.text("h1 .pill") == "ready")
    page.until(lambda: "Chat" in page.texts("[role=tab]"))


def test_plots_show_the_last_hour_also_after_a_reload(page, server):
    page.open()
    stop = threading.Event()

    def work():
        while not stop.wait(0.02):
            add(server, 1)

    worker = in_thread(work)
    try:
        page.until(lambda: "ms" in page.tile("Latency p95"))
        figures = {"requests", "p50", "p95", "memory"}
        page.until(lambda: figures <= set(server.get("/ui/data/history/adder/0", AUTHORIZED).json()["figures"]))
    finally:
        stop.set()
        worker.result(60)
    page.open()
    page.until(lambda: page.run("return document.querySelectorAll('.plot canvas').length") == 4)
    label = "return document.querySelector('.plot .area').getAttribute('aria-label')"
    page.until(lambda: page.run(label).startswith("Throughput, now "))
    assert not page.run(label).endswith("highest 0/s")
    page.run("window.scrollTo(0, 0)")
    move = {"type": "mouseMoved", "x": 270, "y": 270}
    page.browser.execute_cdp_cmd("Input.dispatchMouseEvent", move)
    page.until(lambda: "requests" in page.text(".plot .tip"))


def test_ensembles_and_calls_are_drawn(page, server):
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}], "outputs": [{"name": "OUT"}]}
    assert server.post("/v2/models/caller/infer", body).status == 200
    page.open("#/graph")
    page.until(lambda: "caller called adder" in page.run("return document.querySelector('.graph').textContent"))
    assert "pipeline has the step adder" in page.run("return document.querySelector('.graph').textContent")
    assert len(page.texts(".graph svg a")) == 3


def test_a_graph_that_is_too_wide_for_a_phone_is_drawn_from_top_to_bottom(page, server):
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}], "outputs": [{"name": "OUT"}]}
    assert server.post("/v2/models/caller/infer", body).status == 200
    places = """
        const box = name => document.querySelector(`.graph a[aria-label^=${name}]`).getBoundingClientRect();
        const [caller, adder] = [box("caller"), box("adder")];
        return [adder.left > caller.right, adder.top > caller.bottom];
    """
    page.open("#/graph")
    page.until(lambda: page.texts(".graph svg a"))
    assert page.run(places) == [True, False]
    page.resize(*PHONE)
    page.open("#/graph")
    page.until(lambda: page.texts(".graph svg a"))
    assert page.run(places) == [False, True]
    assert page.run(
        "const { scrollWidth, clientWidth } = document.querySelector('.graph'); return scrollWidth <= clientWidth"
    )
    # No label is on its line: a box between them hides the line.
    assert (
        page.run("return document.querySelectorAll('.graph rect.label').length") == len(page.texts(".graph .small")) - 3
    )


def test_the_chosen_tab_is_seen_and_the_header_is_low_on_a_phone(page):
    page.resize(*PHONE)
    page.open("#/model/speaker/1/explain")
    page.until(lambda: page.texts(".steps"))
    left, right = page.run(
        "const { left, right } = document.getElementById('tab-explain').getBoundingClientRect(); return [left, right]"
    )
    assert left >= 0
    assert right <= PHONE[0]
    assert page.run("return document.querySelector('header').offsetHeight") < 150


def test_an_ensemble_has_no_plots_of_processes(page):
    page.open("#/model/pipeline/1")
    page.until(lambda: page.texts(".plot h3"))
    titles = {text.split("\n")[0] for text in page.texts(".plot h3 span")}
    assert {"Throughput", "Latency", "Queue"} <= titles
    assert not {"Memory", "Processor"} & titles
    page.until(lambda: "An ensemble runs no code" in page.text())


AXIS = """
const [title, figures, done] = arguments;
const plot = new Plot(PLOTS.find(spec => spec.title === title), "h2");
document.querySelector("main").prepend(plot.node);
plot.draw({ time: [1000, 1060], figures }, 60);
setTimeout(() => done(plot.chart.axes[1]._values.filter(text => text !== null)), 50);
"""


@pytest.mark.parametrize(
    ("title", "figures", "labels"),
    [
        ("Processor", {"cpu": [0, 0.05]}, ["0", "0.02", "0.04"]),
        ("Memory", {"memory": [30e6, 54e6]}, ["0", "20 MB", "40 MB", "60 MB"]),
        ("Latency", {"p50": [1, 1.5], "p95": [2, 3]}, ["0", "1 ms", "2 ms", "3 ms"]),
        ("Latency", {"p50": [1, 1.5], "p95": [2, 12]}, ["0", "5 ms", "10 ms"]),
        ("Latency", {"p50": [400, 800], "p95": [900, 2360]}, ["0", "1 s", "2 s"]),
        ("Latency", {"p50": [None, None], "p95": [None, None]}, ["0"]),
        ("Throughput", {"requests": [0, 11000]}, ["0", "5k/s", "10k/s"]),
        ("Queue", {"waiting": [0, 0], "running": [0, 0]}, ["0"]),
        ("Queue", {"waiting": [0, 1], "running": [0, 0]}, ["0", "1"]),
    ],
)
def test_the_marks_of_an_axis_are_exact_and_an_idle_plot_has_none(page, title, figures, labels):
    page.resize(*DESKTOP)
    page.open()
    assert page.browser.execute_async_script(AXIS, title, figures) == labels


def test_the_last_time_of_an_axis_is_not_cut(page):
    page.open()
    page.until(lambda: page.run("return Boolean(app.view.plots.plots[0].chart)"))
    half, room = page.run("""
        const { chart } = app.view.plots.plots[0];
        const context = document.createElement("canvas").getContext("2d");
        context.font = "11px system-ui";
        const { left, width } = chart.bbox;
        return [context.measureText("00:00:00").width / 2, chart.width - (left + width) / devicePixelRatio];
    """)
    assert room >= half
    page.open("#/model/pipeline/1")
    page.until(lambda: page.run("return document.querySelectorAll('.plot canvas').length") == 3)
    # Plots that are hidden leave their width to the others.
    page.until(
        lambda: page.run(
            "return [...document.querySelectorAll('.plot .area')].every("
            "area => Math.abs(area.clientWidth - (area.querySelector('.uplot') || area).clientWidth) < 2)"
        )
    )


def test_the_console_links_to_the_page_of_the_api(page, server):
    page.open()
    page.click("nav a", "API")
    page.until(
        lambda: page.run("return location.pathname") == "/docs" and "/v2/models/adder/infer" in page.text("main")
    )
    page.click("#console", "What the server does now")
    page.until(lambda: page.run("return location.pathname") == "/ui")


def test_environments_are_listed_with_their_models(page):
    page.open("#/environments")
    page.until(lambda: "naiad env gc" in page.text())
    page.until(lambda: "caller" in page.text("[aria-label='interpreters outside of the store']"))


@pytest.mark.parametrize(
    ("route", "size", "scheme"),
    [
        ("#/", DESKTOP, "light"),
        ("#/", PHONE, "dark"),
        ("#/model/caller/1", PHONE, "dark"),
        ("#/model/caller/1/request", PHONE, "light"),
        ("#/model/speaker/1/chat", DESKTOP, "dark"),
        ("#/model/caller/1/explain", DESKTOP, "light"),
        ("#/model/caller/1/explain", PHONE, "light"),
        ("#/model/caller/1/configuration", PHONE, "dark"),
        ("#/graph", PHONE, "light"),
        ("#/model/broken/1/log", PHONE, "light"),
        ("#/graph", DESKTOP, "dark"),
        ("#/environments", PHONE, "light"),
    ],
)
def test_pages_fit_and_have_no_serious_barrier(page, axe, route, size, scheme):
    page.resize(*size)
    page.prefer(scheme)
    page.open(route)
    if "model" in route:
        page.until(lambda: page.run("return document.getElementById('panel').childElementCount"))
    assert page.problems(axe) == []
    assert page.fits()


LINES_OF_NAMES = """
return [...document.querySelectorAll("td b, code.digest")].map(name => {
  const text = document.createRange();
  text.selectNodeContents(name);
  return [name.innerText, new Set([...text.getClientRects()].map(line => line.top)).size];
});
"""


@pytest.mark.parametrize(
    ("route", "name"), [("#/activity", "server"), ("#/model/caller/1", "HALF_OUT"), ("#/model/caller/1/request", None)]
)
def test_names_in_tables_are_not_broken_on_a_phone(page, route, name):
    page.resize(*PHONE)
    page.open(route)
    if name is None:
        page.click("button", "Send")
        page.until(lambda: page.texts(".outputs td b"))
    else:
        page.until(lambda: name in page.texts("td b"))
    shown = page.run(LINES_OF_NAMES)
    assert shown
    assert [each for each, lines in shown if lines > 1] == []


def test_the_page_is_small_and_loads_and_breaks_nothing(page, server):
    page.open()
    answer = server.get("/ui", AUTHORIZED)
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert len(answer.body) < SERVED_BYTES
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in headers["content-security-policy"]
    packed = server.get("/ui", {**AUTHORIZED, "Accept-Encoding": "gzip"})
    assert len(packed.body) < len(answer.body) / 2
    assert server.get("/ui", {**AUTHORIZED, "If-None-Match": headers["etag"]}).status == 304
    wrong = [entry["message"] for entry in page.browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert [message for message in wrong if "Content Security Policy" in message or "Error:" in message] == []
    hosts = "return performance.getEntriesByType('resource').map(entry => new URL(entry.name).host)"
    assert set(page.run(hosts)) == {server.http_url}


def test_a_request_without_the_password_is_rejected_and_the_root_leads_to_the_page(server):
    for headers in ({}, {"Authorization": "Basic " + base64.b64encode(b"anybody:wrong").decode()}):
        for path in ("/ui", "/ui/data/state", "/ui/data/log/caller/0"):
            reply = server.get(path, headers)
            assert reply.status == 401
            assert reply.headers.get("www-authenticate", "").startswith("Basic ")
    assert server.get("/v2/health/live").status == 200
    assert server.get("/").status == 302
    assert server.post("/ui", {}, AUTHORIZED).status == 405


def test_models_are_controlled_by_requests_of_the_page_alone(server):
    reply = server.post("/ui/control/unload/adder", b"", AUTHORIZED)  # as a page of another site could send it
    assert reply.status == 403
    assert "naiad-console" in reply.error
    assert server.get("/v2/models/adder/ready").status == 200


def test_without_the_flag_there_is_no_page_and_with_two_processes_there_is(tmp_path):
    with ServerProcess(
        LANGUAGE_MODELS,
        "--ui=true",
        "--processes=2",
        "--load-model=adder",
        "--model-control-mode=explicit",
        work=tmp_path,
    ) as server:
        add(server, 1)
        state = server.get("/ui/data/state").json()
        assert {model["name"]: model["state"] for model in state["models"]}["adder"] == "READY"
        assert [each["role"] for each in state["processes"]] == ["process 0", "process 1"]
        assert server.post("/ui/control/unload/adder", b"", {"naiad-console": "1"}).status == 403
        assert server.get("/ui/data/nothing").status == 400

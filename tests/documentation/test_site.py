"""The documentation as a site: it is built without a warning, has every page, and needs no other host."""

from __future__ import annotations

import contextlib
import functools
import html.parser
import http.server
import re
import runpy
import subprocess
import threading
from pathlib import Path

import pytest
from support.system_packages import needs

from naiad.engine.lifecycle.states import TRANSITIONS

ROOT = Path(__file__).resolve().parents[2]
MAKE_SITE = runpy.run_path(str(ROOT / "docs" / "make_site.py"))


class _Loaded(html.parser.HTMLParser):
    """Addresses that a browser fetches by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in {"script", "img", "iframe", "source", "video"}:
            self.addresses += filter(None, [values.get("src")])
        if tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}:
            self.addresses += filter(None, [values.get("href")])
        if tag == "a":
            self.links += filter(None, [values.get("href")])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("zensical", reason="the generator of the site needs Python 3.11")
    folder = tmp_path_factory.mktemp("documentation") / "site"
    MAKE_SITE["build"](folder)
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_fetches_nothing_from_other_hosts(site):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    listing = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {
        name.replace("README.md", "index.html").replace(".md", ".html")
        for name in listing.splitlines()
        if not name.startswith("docs/changes/+") and (ROOT / name).is_file()
    }
    assert expected - pages == set()

    fetched, missing = [], []
    for name in pages - {"404.html"}:
        parser = _Loaded()
        parser.feed((site / name).read_text(encoding="utf-8"))
        assert parser.addresses, name
        fetched += [f"{name}: {address}" for address in parser.addresses if "//" in address]
        here = [link.partition("#")[0] for link in parser.links if "://" not in link and not link.startswith("mailto:")]
        missing += [f"{name}: {link}" for link in here if link and not (site / name).parent.joinpath(link).exists()]
    assert fetched == []
    assert missing == []


@pytest.mark.slow
def test_the_states_of_a_model_are_a_picture_and_the_site_has_the_logo(site):
    page = (site / "docs" / "explanation" / "architecture.html").read_text(encoding="utf-8")
    assert "stateDiagram" not in page
    (name,) = re.findall(r'src="(architecture\.\d+\.svg)"', page)
    picture = (site / "docs" / "explanation" / name).read_text(encoding="utf-8")
    assert picture.count("<rect") == len(TRANSITIONS)
    assert picture.count("<line") == 1 + sum(map(len, TRANSITIONS.values()))
    assert "images/logo.svg" in page


@pytest.mark.slow
def test_the_first_page_has_a_picture_in_the_readers_colors_and_three_ways_in(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    ways = re.findall(r'<div class="ways">(.*?)</div>', page)[0]
    assert re.findall(r'href="([^"]+)"', ways) == [
        "docs/tutorial/first-model.html",
        "docs/how-to/migrate-from-triton.html",
        "backends/vllm_like/index.html",
    ]
    assert re.findall(r'src="docs/images/(console[^"]*)"', page) == [
        "console.png#only-light",
        "console-dark.png#only-dark",
    ]
    for name in ("docs/tutorial/first-model.html", "docs/images/console-dark.png"):
        assert (site / name).is_file()


@pytest.mark.slow
def test_readers_choose_light_or_dark_and_output_looks_unlike_commands(site):
    page = (site / "docs" / "how-to" / "bundle.html").read_text(encoding="utf-8")
    assert [text.partition(".")[0] for text in re.findall(r'title="(Colors: [^"]+)"', page)] == [
        "Colors: those of the system",
        "Colors: light",
        "Colors: dark",
    ]
    assert "docs/site.css" in page or "../site.css" in page
    assert ".printed.highlight" in (site / "docs" / "site.css").read_text(encoding="utf-8")
    printed = page.partition('<div class="language-text printed highlight">')[2].partition("</div>")[0]
    assert "wrote shop.tar.zst" in printed
    # A block without a language is a command or a file of the reader's.
    typed = page.partition('<div class="language-text highlight">')[2].partition("</div>")[0]
    assert "skopeo copy oci:image docker://registry.example/naiad:1" in typed
    assert '<div class="language-sh highlight">' in page


SEARCH = """
const [worker, words, done] = arguments;
const search = new Worker(worker);
fetch("search.json").then(answer => answer.json()).then(index => {
  const found = {};
  search.onmessage = ({ data }) => {
    if (data.type === 3) found[words[Object.keys(found).length]] = data.data.items.map(item => index.items[item.id].location);
    const next = words[Object.keys(found).length];
    if (next) search.postMessage({ type: 2, data: { input: next } }); else done(found);
  };
  search.postMessage({ type: 0, data: index });
});
"""


@pytest.mark.endurance
@needs("chromium", "chromedriver")
def test_the_search_finds_pages_to_do_things_by_before_decisions(site, tmp_path):
    """With the site's own search, in a real browser."""
    browser = runpy.run_path(str(ROOT / "docs" / "make_screenshots.py"))["browser"]
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    words = ["quickstart", "install", "docker", "restart", "bundle", "environment", "gpu", "metrics"]
    with _served(site) as url, browser(tmp_path) as page:
        page.get(f"{url}/index.html")
        page.set_script_timeout(60)
        found = page.execute_async_script(SEARCH, worker.relative_to(site).as_posix(), words)
        page.get("about:blank")
    assert found["quickstart"][0] == "index.html#quickstart-a-model-of-your-own"
    assert found["install"][:2] == ["docs/how-to/install.html", "index.html#install-and-try-it"]
    assert found["docker"][0] == "docs/how-to/kserve.html#in-docker"
    for word in words[3:]:
        assert len(found[word]) == 10
        assert [location for location in found[word] if "decisions/" in location] == [], word


CONTRAST = """
const done = arguments[0];
axe.run({ runOnly: ["color-contrast"] }).then(result => done(result.violations.flatMap(each => each.nodes.map(node => node.html))));
"""
WIDER = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
AT_REST = """
const style = document.createElement("style");
style.textContent = "* { transition: none !important }";
document.head.append(style);
"""


@pytest.mark.endurance
@pytest.mark.timeout(600)
@needs("chromium", "chromedriver")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read_in_windows_of_all_widths_and_in_both_colors(site, tmp_path, scheme):
    browser = runpy.run_path(str(ROOT / "docs" / "make_screenshots.py"))["browser"]
    axe = (ROOT / "tests" / "vendor" / "axe.min.js").read_text(encoding="utf-8")
    names = ["index.html", "docs/how-to/bundle.html", "docs/reference/compatibility-config.html"]
    with _served(site) as url, browser(tmp_path) as page:
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        page.set_script_timeout(60)
        for name in names:
            for width in (390, 1280, 1920):
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
                page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                page.get(f"{url}/{name}")
                page.execute_script(AT_REST)
                page.execute_script(axe)
                assert page.execute_script(WIDER) <= 0, (name, width)
                assert page.execute_async_script(CONTRAST) == [], (name, width)
        page.get("about:blank")


@contextlib.contextmanager
def _served(folder):
    """The address of a server of a folder's files."""
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def test_the_entries_of_a_decision_are_one_that_its_words_find_later():
    def item(location, title, text):
        return {"location": location, "level": 1, "title": title, "text": text, "path": ["Parts", title], "tags": []}

    ordered = MAKE_SITE["ordered"](
        [
            item("docs/decisions/0007-restart.html", "7. Restarts", "<p>Why.</p>"),
            item("docs/decisions/0007-restart.html#price", "Price", "<p>Much.</p>"),
            item("docs/decisions/index.html", "Decisions", "<p>Restarts</p>"),
            item("docs/reference/errors.html#restarterror", "RestartError", "<p>cannot restart</p>"),
            item("docs/how-to/debug.html", "Debug", "<p>Restarts</p>"),
            item("docs/tutorial/first.html", "First", "<p>Steps</p>"),
        ]
    )
    assert [each["location"] for each in ordered] == [
        "docs/tutorial/first.html",
        "docs/how-to/debug.html",
        "docs/reference/errors.html#restarterror",
        "docs/decisions/0007-restart.html",
    ]
    error, decision = ordered[2:]
    assert (error["title"], error["text"]) == ("Error messages", "<p>RestartError</p> <p>cannot restart</p>")
    assert (decision["title"], decision["path"]) == ("Decision 7", ["Decision"])
    assert decision["text"].endswith("<p>7. Restarts</p> <p>Why.</p> <p>Price</p> <p>Much.</p>")
    assert len(decision["text"].split("\ufeff")) > 300


def test_a_first_page_without_a_place_for_picture_and_ways_is_named():
    with pytest.raises(MAKE_SITE["SiteError"], match=r"^README\.md: no picture docs/images/console\.png or no list"):
        MAKE_SITE["home"]("# naiad\n\nServes models.\n")


def test_code_in_tables_is_not_broken_at_hyphens():
    unbroken = MAKE_SITE["unbroken"]
    row = '<td style="text-align: left;"><code>serve --http-port=8000 x</code> a-b</td>'
    assert unbroken(f"<p><code>a-b</code></p>{row}") == (
        '<p><code>a-b</code></p><td style="text-align: left;"><code>serve <span class="word">--http-port=8000</span> x</code>'
        " a-b</td>"
    )


def test_long_names_in_tables_are_broken_at_their_joints():
    unbroken = MAKE_SITE["unbroken"]
    cell = "<td><code>nv_{request,queue}_duration_us tests/test_it.py -k short_name</code></td>"
    assert unbroken(cell) == (
        "<td><code>nv_<wbr>{request,<wbr>queue}_<wbr>duration_<wbr>us tests/test_it.py "
        '<span class="word">-k</span> short_name</code></td>'
    )
    assert unbroken("<td><code>model-repository,model-config,trace</code></td>") == (
        '<td><code><span class="word">model-repository,</span><wbr><span class="word">model-config,</span><wbr>trace</code></td>'
    )


def test_a_state_without_a_place_in_the_picture_is_named():
    with pytest.raises(MAKE_SITE["SiteError"], match="no place for PAUSED; add one to _PLACES"):
        MAKE_SITE["state_picture"]("stateDiagram-v2\n    READY --> PAUSED\n")


@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("# Page\n\n[there](nowhere.md)\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    build = MAKE_SITE["build"]
    monkeypatch.setitem(build.__globals__, "ROOT", tmp_path)

    with pytest.raises(MAKE_SITE["SiteError"], match=r"^page\.md: 'nowhere\.md' does not exist$"):
        build(tmp_path / "build" / "site")


def test_the_navigation_is_that_of_the_first_page():
    parts = {part.title: part for part in MAKE_SITE["navigation"]()}

    assert list(parts)[-1] == "All pages"
    assert parts["How to"].entries[0].title == "Models"
    assert ("Start a model or a backend", "docs/how-to/start-a-model.md") in parts["How to"].entries[0].entries
    commands = parts["Reference"].entries[0]
    assert ("Flags of tritonserver and naiad serve", "docs/reference/flags.md") in commands.entries


@pytest.mark.slow
def test_links_of_the_page_of_a_package_index_lead_to_pages_of_the_site(site):
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))
    page = hook["with_absolute_links"]((ROOT / "README.md").read_text(encoding="utf-8"), "https://docs.example")
    found = re.findall(r"\]\(https://docs\.example/([^()\s#]+)", page)
    assert len(found) > 30
    assert [path for path in found if not (site / path).is_file()] == []

"""The documentation as a site: it is built without a warning, has every page, and needs no other host."""

from __future__ import annotations

import html.parser
import re
import runpy
import subprocess
from pathlib import Path

import pytest

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

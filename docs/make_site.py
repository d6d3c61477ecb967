"""Builds the documentation site from the Markdown of the repository: `make docs`.

The pages link to files outside of `docs/`, because they are also read in a checkout. So the site mirrors the
repository: every Markdown file, and every file that one of them links to, at its own path. The navigation is that of
`docs/README.md`: its headings and the links below them, in their order. A diagram of states, which GitHub draws from
its text, becomes a picture here: a reader's browser would fetch the program that draws it from another host.

The first page is README with a picture in the reader's colors and three ways in. The index of the search is written
again, because the search knows no other order than where a word is: pages to do things by come before decisions.

Zensical, in Markdown without its extensions, so that another generator can replace it: the maintenance of Material for
MkDocs ends in November 2026, and roles and directives of Sphinx are not shown by a forge.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"

_LINK = re.compile(r"(?<=\]\()([^()\s#]+)(?=[)#])")
_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#{1,3}) +(.+)$")
_NEWS = re.compile(r"^docs/changes/\+.*\.md$")
"""Entries of the next changelog: their links are relative to the changelog that they become a part of."""

_SETTINGS = """\
[project]
site_name = "naiad"
site_description = "Serves models written in Python, each in its own Python"
docs_dir = {source}
site_dir = {site}
extra_css = ["docs/site.css"]
use_directory_urls = false
nav = {navigation}

[project.theme]
font = false
logo = "docs/images/logo.svg"
favicon = "docs/images/logo.svg"
features = ["content.code.copy", "navigation.tabs", "navigation.top", "search.highlight", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
primary = "teal"
accent = "teal"
toggle.icon = "lucide/sun-moon"
toggle.name = "Colors: those of the system. Switch to light"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
primary = "teal"
accent = "teal"
toggle.icon = "lucide/sun"
toggle.name = "Colors: light. Switch to dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
primary = "teal"
accent = "teal"
toggle.icon = "lucide/moon"
toggle.name = "Colors: dark. Switch to those of the system"

[project.markdown_extensions.attr_list]
[project.markdown_extensions.tables]
[project.markdown_extensions.toc]
permalink = true
[project.markdown_extensions.pymdownx.highlight]
pygments_lang_class = true
[project.markdown_extensions.pymdownx.superfences]
"""
_LOGO_PATH = "docs/images/logo.svg"
LOGO = ROOT / _LOGO_PATH
_STYLE_PATH = "docs/site.css"
STYLE = ROOT / _STYLE_PATH
# Fonts, emoji and diagrams would be fetched from other hosts by the reader's browser: none of them is enabled.


class SiteError(Exception):
    """The site cannot be built."""


@dataclass
class Section:
    """A part of the navigation.

    Attributes:
        title: The heading of the part.
        entries: Titles with paths of pages, and further parts.
    """

    title: str
    entries: list[tuple[str, str] | Section] = field(default_factory=list)

    def as_navigation(self) -> dict[str, object]:
        """The part in the form of the generator's settings; empty parts are left out."""
        entries = [entry for entry in self.entries if not isinstance(entry, Section) or entry.entries]
        return {
            self.title: [
                entry.as_navigation() if isinstance(entry, Section) else {entry[0]: entry[1]} for entry in entries
            ]
        }


def build(site: Path = SITE) -> None:
    """Build the site into a folder, which is replaced.

    Raises:
        SiteError: If the generator is missing or has a warning, or a link leads nowhere.
    """
    source = site.with_name(f"{site.name}-source")
    for folder in (site, source):
        shutil.rmtree(folder, ignore_errors=True)
    logo = source / _LOGO_PATH
    logo.parent.mkdir(parents=True)
    shutil.copyfile(LOGO, logo)
    shutil.copyfile(STYLE, source / _STYLE_PATH)
    _mirror(source)
    first = source / "README.md"
    if first.is_file():
        first.write_text(home(first.read_text(encoding="utf-8")), encoding="utf-8")
    settings = site.with_name(f"{site.name}.toml")
    settings.write_text(
        _SETTINGS.format(
            source=json.dumps(source.name),
            site=json.dumps(site.name),
            navigation=_inline([{"naiad": "README.md"}, *(part.as_navigation() for part in navigation())]),
        ),
        encoding="utf-8",
    )
    if importlib.util.find_spec("zensical") is None:
        raise SiteError(
            f"cannot build the site: zensical, which builds it, is not installed for {sys.executable} (Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}), and needs Python 3.11 or newer; run `make docs "
            "VENV=.venv-docs PYTHON=/path/to/python3.11`"
        )
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(settings)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise SiteError(f"cannot build the site:\n{built.stdout}{built.stderr}")
    for page in site.rglob("*.html"):
        page.write_text(unbroken(page.read_text(encoding="utf-8")), encoding="utf-8")
    index = site / "search.json"
    found = json.loads(index.read_text(encoding="utf-8"))
    found["items"] = ordered(found["items"])
    index.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_WORD = re.compile(r"[^\s<>]+")
_HYPHENATED = re.compile(r"-\w")
_LONG_WORD = 24
_JOINT = re.compile(r"(?<=[,/_])(?=\w|\{)")


def unbroken(page: str) -> str:
    """The HTML of a page whose code in tables is broken where a reader would break it.

    Browsers break it at hyphens (`--http-` and `port`, `-` and `k`), and long names nowhere: their columns left one
    word of room for the text beside them. A long name may be broken behind a comma, a slash or an underscore.
    """

    def in_word(word: re.Match[str]) -> str:
        parts = _JOINT.split(word[0]) if len(word[0]) > _LONG_WORD else [word[0]]
        return "<wbr>".join(f'<span class="word">{part}</span>' if _HYPHENATED.search(part) else part for part in parts)

    return _CELL.sub(lambda cell: _CODE.sub(lambda code: _WORD.sub(in_word, code[0]), cell[0]), page)


# -- the first page --------------------------------------------------------------------------------------------------

_WAYS = (
    (
        "docs/tutorial/first-model.md",
        "Write a model",
        "In 30 minutes: a model with packages of its own, a test, batches, metrics and a page in the browser.",
    ),
    (
        "docs/how-to/migrate-from-triton.md",
        "Serve what Triton serves",
        "The same repositories, clients and start lines. A checklist says what is left to do.",
    ),
    (
        "backends/vllm_like/README.md",
        "Serve language models",
        "llama.cpp or vLLM behind OpenAI's API, for chats, agents and embeddings.",
    ),
)
_PICTURE_OF_PAGE = re.compile(r"^!\[([^\]]*)\]\((docs/images/console)\.png\)$", re.MULTILINE)
_FIRST_LIST = re.compile(r"^- ", re.MULTILINE)


def home(text: str) -> str:
    """README as the first page: three ways in after its first lines, then its picture, light or dark as the page.

    Raises:
        SiteError: If README has no list or picture to put them at.
    """
    picture, begin = _PICTURE_OF_PAGE.search(text), _FIRST_LIST.search(text)
    if picture is None or begin is None:
        raise SiteError("README.md: no picture docs/images/console.png or no list after its first lines")
    ways = "".join(
        f'<a href="{_page_address(page)}"><b>{title}</b><span>{what}</span></a>' for page, title, what in _WAYS
    )
    pictures = "\n".join(
        f"![{picture[1]}]({picture[2]}{name}.png#only-{scheme})" for name, scheme in (("", "light"), ("-dark", "dark"))
    )
    whole = text[: picture.start()] + text[picture.end() :]
    at = begin.start()
    return (
        "---\ntitle: Python models, each in its own Python\nhide:\n  - navigation\n---\n\n"
        f'{whole[:at]}<div class="ways">{ways}</div>\n\n{pictures}\n\n{whole[at:]}'
    )


def _page_address(page: str) -> str:
    if not (ROOT / page).is_file():
        raise SiteError(f"the first page leads to {page}, which does not exist")
    return page.replace("README.md", "index.html").replace(".md", ".html")


# -- the search ------------------------------------------------------------------------------------------------------

_RANKS = (
    "index.html",
    "docs/tutorial/",
    "docs/how-to/",
    "docs/reference/",
    "docs/explanation/",
    "examples/",
    "backends/",
)
"""Beginnings of addresses, in the order of pages whose matches are equal; all others follow."""
_BACKGROUND = {"docs/decisions/": "Decision", "CHANGELOG.html": "Changelog"}
"""Pages that are one entry each, without a title to be found by, so that they follow pages to do things by."""
_DISTANCE = "\u00ad\ufeff" * 400
"""Unseen words before those of background pages: of two matches in texts, the nearer to the start is first."""
_LISTS = ("docs/index.html", "docs/decisions/index.html")
"""Pages that only list others: their words are those of the pages."""
_ERRORS = "docs/reference/errors.html#"
_NUMBER = re.compile(r"(\d+)\. +")


def ordered(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of the index in another order, those of decisions joined.

    The search sorts by the field with a match (title, breadcrumbs, text), then by the place of the match in it, and
    keeps the order of the index otherwise.
    """
    kept: list[dict[str, Any]] = []
    joined: dict[str, dict[str, Any]] = {}
    for item in items:
        page = item["location"].partition("#")[0]
        if page in _LISTS:
            continue
        label = next((label for start, label in _BACKGROUND.items() if page.startswith(start)), "")
        if not label:
            kept.append(_without_class_name(item))
        elif page in joined:
            joined[page]["text"] += f" <p>{item['title']}</p> {item['text']}"
        else:
            number = _NUMBER.match(item["title"])
            title = f"{label} {number[1]}" if number else label
            text = f"{_DISTANCE}<p>{item['title']}</p> {item['text']}"
            joined[page] = {**item, "title": title, "path": [label], "text": text}
            kept.append(joined[page])
    return sorted(kept, key=lambda item: _rank(item["location"]))


def _rank(location: str) -> int:
    return next((rank for rank, start in enumerate(_RANKS) if location.startswith(start)), len(_RANKS))


def _without_class_name(item: dict[str, Any]) -> dict[str, Any]:
    """An entry of the page of errors is found by its messages: the name of its class is not what readers look for."""
    if not item["location"].startswith(_ERRORS):
        return item
    return {**item, "title": "Error messages", "text": f"<p>{item['title']}</p> {item['text']}"}


# -- the navigation --------------------------------------------------------------------------------------------------


def navigation() -> list[Section]:
    """The parts of the site, from the headings and links of `docs/README.md`."""
    first = ROOT / "docs" / "README.md"
    parts = [Section("All pages", [("All pages", "docs/README.md")])]
    listed = {first}
    part = parts[0]
    for line in _without_code(first.read_text(encoding="utf-8")).splitlines():
        if heading := _HEADING.match(line):
            depth, title = len(heading[1]), heading[2]
            if depth == 1:
                continue
            part = Section(title)
            if depth == 2:
                parts.append(part)
            else:
                parts[-1].entries.append(part)
            continue
        for target in _LINK.findall(line):
            page = (first.parent / target).resolve()
            if page.suffix == ".md" and page not in listed and "://" not in target:
                listed.add(page)
                part.entries.append((_title(page), page.relative_to(ROOT).as_posix()))
    return [part for part in parts[1:] if part.entries] + parts[:1]


def _mirror(source: Path) -> None:
    """Copy the pages and what they link to; a link to a folder becomes one to its README."""
    for page in _pages():
        text = page.read_text(encoding="utf-8")
        for target in dict.fromkeys(_links(text)):
            linked = (page.parent / target).resolve()
            if linked.is_dir():
                if not (linked / "README.md").is_file():
                    raise SiteError(
                        f"{page.relative_to(ROOT)}: '{target}' is a folder without a README.md; link to a file"
                    )
                text = text.replace(f"]({target}", f"]({target.rstrip('/')}/README.md")
            elif not linked.is_file():
                raise SiteError(f"{page.relative_to(ROOT)}: '{target}' does not exist")
            elif linked.suffix != ".md":
                _copy(linked, source)
        copied = _copy(page, source)
        copied.write_text(_with_pictures(_with_outputs(text), copied), encoding="utf-8")


_OUTPUT = re.compile(r"^( *)```text$", re.MULTILINE)


def _with_outputs(text: str) -> str:
    """The text of a page whose blocks of output, and those without a language, have the class `printed`."""
    return _OUTPUT.sub(r"\1``` { .text .printed }", text)


_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ARROW = re.compile(r"^ +(\S+) --> (\S+)$", re.MULTILINE)
_START = "[*]"
_PLACES = {
    _START: (30, 150),
    "UNKNOWN": (140, 150),
    "LOADING": (330, 150),
    "READY": (520, 50),
    "UNAVAILABLE": (520, 250),
    "UNLOADING": (710, 150),
}
"""Center of each state; its box is 130 by 40."""
_HALF_WIDTH, _HALF_HEIGHT = 65, 20
_PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 790 300" font-family="sans-serif" font-size="14" role="img">
<title>{title}</title>
<style>
text{{fill:#1f2328}} .box{{fill:#eef2ff;stroke:#4f5bd5}} .arrow{{stroke:#4f5bd5;stroke-width:1.5}} .head{{fill:#4f5bd5}}
@media (prefers-color-scheme: dark){{
text{{fill:#e6e9ef}} .box{{fill:#23284a;stroke:#8f9bff}} .arrow{{stroke:#8f9bff}} .head{{fill:#8f9bff}}
}}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path class="head" d="M0 0 8 4 0 8z"/>
</marker></defs>
{parts}
</svg>
"""


def _with_pictures(text: str, page: Path) -> str:
    """The text of a page with pictures instead of its diagrams; they are written beside the page."""
    numbers = itertools.count(1)

    def replaced(match: re.Match[str]) -> str:
        picture = page.with_suffix(f".{next(numbers)}.svg")
        picture.write_text(state_picture(match[1]), encoding="utf-8")
        return f"![{_described(_ARROW.findall(match[1]))}]({picture.name})"

    return _DIAGRAM.sub(replaced, text)


def state_picture(diagram: str) -> str:
    """A diagram of states as SVG.

    Raises:
        SiteError: If the diagram has a state without a place.
    """
    arrows = _ARROW.findall(diagram)
    unknown = sorted({state for arrow in arrows for state in arrow} - set(_PLACES))
    if unknown or not arrows:
        raise SiteError(f"cannot draw a diagram: no place for {', '.join(unknown) or 'it'}; add one to _PLACES")
    x, y = _PLACES[_START]
    parts = [_line(arrow, is_pair=arrow[::-1] in arrows) for arrow in arrows]
    parts.append(f'<circle class="head" cx="{x}" cy="{y}" r="8"/>')
    for state in dict.fromkeys(state for arrow in arrows for state in arrow if state != _START):
        x, y = _PLACES[state]
        box = f'x="{x - _HALF_WIDTH}" y="{y - _HALF_HEIGHT}" width="{2 * _HALF_WIDTH}" height="{2 * _HALF_HEIGHT}"'
        parts.append(f'<rect class="box" {box} rx="6"/><text x="{x}" y="{y + 5}" text-anchor="middle">{state}</text>')
    return _PICTURE.format(title=_described(arrows), parts="\n".join(parts))


def _line(arrow: tuple[str, str], *, is_pair: bool) -> str:
    """The line between two states, from border to border; those of a pair are beside each other."""
    (x1, y1), (x2, y2) = (_PLACES[state] for state in arrow)
    dx, dy = x2 - x1, y2 - y1
    length = math.hypot(dx, dy)
    aside = 8 if is_pair else 0
    ox, oy = -dy / length * aside, dx / length * aside
    begin = 8 / length if arrow[0] == _START else _part_in_box(dx, dy, ox, oy)
    end = 1 - _part_in_box(-dx, -dy, ox, oy) - 2 / length
    (bx, by), (ex, ey) = ((x1 + dx * part + ox, y1 + dy * part + oy) for part in (begin, end))
    return f'<line class="arrow" marker-end="url(#head)" x1="{bx:.1f}" y1="{by:.1f}" x2="{ex:.1f}" y2="{ey:.1f}"/>'


def _part_in_box(dx: float, dy: float, ox: float, oy: float) -> float:
    """The part of a way by (dx, dy) that is within the box around its start, moved by (ox, oy)."""
    across = (math.copysign(_HALF_WIDTH, dx) - ox) / dx if dx else math.inf
    down = (math.copysign(_HALF_HEIGHT, dy) - oy) / dy if dy else math.inf
    return min(across, down)


def _described(arrows: Sequence[tuple[str, str]]) -> str:
    ways = "; ".join(f"{state} to {following}" for state, following in arrows if state != _START)
    return f"States: {ways}"


def _copy(file: Path, source: Path) -> Path:
    copied = source / file.relative_to(ROOT)
    copied.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copied)
    return copied


def _pages() -> Iterator[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in listing.splitlines():
        if (ROOT / name).is_file() and not _NEWS.match(name):
            yield ROOT / name


def _links(text: str) -> Iterator[str]:
    for target in _LINK.findall(_without_code(text)):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def _without_code(text: str) -> str:
    return _CODE.sub("", text)


def _title(page: Path) -> str:
    """The first heading of a page, without marks of code."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.match(line):
            return heading[2].replace("`", "")
    raise SiteError(f"{page.relative_to(ROOT)}: no heading")


def _inline(value: object) -> str:
    """A value as TOML: lists and tables on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(key)} = {_inline(item)}' for key, item in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    try:
        build()
    except SiteError as error:
        sys.exit(str(error))
    print(f"wrote {SITE.relative_to(ROOT)}: open index.html, or serve it: python -m http.server --directory build/site")

"""Builds the documentation site from the Markdown of the repository: `make docs`.

The pages link to files outside of `docs/`, because they are also read in a checkout. So the site mirrors the
repository: every Markdown file, and every file that one of them links to, at its own path. The navigation is that of
`docs/README.md`: its headings and the links below them, in their order.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

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
use_directory_urls = false
nav = {navigation}

[project.theme]
font = false
features = ["content.code.copy", "navigation.tabs", "navigation.top", "search.highlight", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"

[project.markdown_extensions.attr_list]
[project.markdown_extensions.tables]
[project.markdown_extensions.toc]
permalink = true
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.superfences]
"""
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
        SiteError: If a link leads nowhere, or the generator has a warning.
    """
    source = site.with_name(f"{site.name}-source")
    for folder in (site, source):
        shutil.rmtree(folder, ignore_errors=True)
    _mirror(source)
    settings = site.with_name(f"{site.name}.toml")
    settings.write_text(
        _SETTINGS.format(
            source=json.dumps(source.name),
            site=json.dumps(site.name),
            navigation=_inline([{"naiad": "README.md"}, *(part.as_navigation() for part in navigation())]),
        ),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(settings)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise SiteError(f"cannot build the site:\n{built.stdout}{built.stderr}")


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
        _copy(page, source).write_text(text, encoding="utf-8")


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

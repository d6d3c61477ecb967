"""The pages of documentation: the first one leads to all others, and no link is broken."""

from __future__ import annotations

import re

from architecture import rules
from architecture.sources import ROOT, tracked_files

_DOCS = ROOT / "docs"


def test_the_first_page_lists_every_other_one() -> None:
    pages = {page for page in tracked_files() if page.suffix == ".md" and _DOCS in page.parents}
    # News are one file each; a release joins them.
    pages -= {_DOCS / "README.md", *(_DOCS / "changes").glob("*.*.md")}

    assert rules.unlisted_pages(_DOCS / "README.md", pages) == []


def test_every_link_between_files_leads_somewhere() -> None:
    pages = [page for page in tracked_files() if page.suffix == ".md"]

    # Entries of the next changelog have links relative to the changelog, at the root.
    folders = dict.fromkeys((_DOCS / "changes").glob("*.*.md"), ROOT)
    assert [link for page in pages for link in rules.broken_links(page, folders.get(page))] == []


INSTALL = "docs/how-to/install.md"
ELSEWHERE = ("docs/changes/", "docs/decisions/", "docs/reference/errors.md", INSTALL)
"""Where the name that an index would know may stand: history, the texts of errors, and the page about it."""


def test_one_page_says_how_naiad_is_installed_as_long_as_no_index_has_it() -> None:
    pages = [path for path in tracked_files() if path.suffix == ".md"]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in pages}
    named = re.compile(r"pip install (?:--quiet )?['\"]?naiad\b|`['\"]?naiad\[\w+\]")
    found = [name for name, text in texts.items() if not name.startswith(ELSEWHERE) and named.search(text)]
    assert [name for name in found if name.startswith(("README.md", "docs/"))] == []


def test_the_page_about_the_installation_has_all_extras() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    page = (ROOT / INSTALL).read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == sorted(re.findall(r"^(\w+) = ", table, re.MULTILINE))

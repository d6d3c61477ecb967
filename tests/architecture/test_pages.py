"""The pages of documentation: the first one leads to all others, and no link is broken."""

from __future__ import annotations

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

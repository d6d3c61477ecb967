"""The pages of documentation: all of them can be found from one, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from architecture.sources import ROOT, tracked_files

_DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def test_the_first_page_lists_every_other_one() -> None:
    listed = {(_DOCS / target).resolve() for target, _ in _links(_DOCS / "README.md")}
    # News are one file each, which a release joins.
    pages = {page for page in tracked_files() if page.suffix == ".md" and _DOCS in page.parents}
    pages -= {_DOCS / "README.md", *(_DOCS / "changes").glob("*.*.md")}

    assert sorted(str(page.relative_to(_DOCS)) for page in pages if page not in listed) == []


def test_every_link_between_files_leads_somewhere() -> None:
    pages = [page for page in tracked_files() if page.suffix == ".md" and page.exists()]
    lost = [
        f"{page.relative_to(ROOT)}: {target}{'#' if anchor else ''}{anchor}"
        for page in pages
        for target, anchor in _links(page)
        if not _is_there(page, target, anchor)
    ]

    assert lost == []


def _links(page: Path) -> list[tuple[str, str]]:
    """Path and anchor of each link to another file or to a place in this one."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in _LINK.findall(text) if "://" not in target and not target.startswith("mailto:")]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in targets)]


def _is_there(page: Path, target: str, anchor: str) -> bool:
    path = (page.parent / target) if target else page
    if not path.exists():
        return False
    return not anchor or anchor in {_anchor(heading) for heading in _HEADING.findall(path.read_text(encoding="utf-8"))}


def _anchor(heading: str) -> str:
    """The anchor that a page of Markdown has for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

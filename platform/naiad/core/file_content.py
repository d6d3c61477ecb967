"""Recognises files that were not fetched: a Git LFS pointer or an HTML page in place of what the name says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

HEAD_BYTES = 512  # so much of a file is enough
_LFS = b"version https://git-lfs.github.com/spec/"
_HTML = (b"<!doctype html", b"<html")
_MARK = b"\xef\xbb\xbf"
_MAX_ENTRIES = 10_000  # so many entries of a directory are looked at, which takes well below a second
_PAGES = frozenset({".htm", ".html", ".jinja", ".j2", ".md", ".tmpl", ".xhtml"})  # may begin as an HTML page does
_HIDDEN = "."


def explain_content(head: bytes) -> str:
    """What a file is whose first bytes are *head*, and what to do; empty unless it was not fetched."""
    if head.startswith(_LFS):
        return "a Git LFS pointer instead of the file; run `git lfs pull` in the repository that it comes from"
    if head.removeprefix(_MARK).lstrip()[: len(_HTML[0])].lower().startswith(_HTML):
        return "an HTML page instead of the file, as servers send for a login or an error; download it again"
    return ""


def explain_file(path: Path) -> str:
    """As `explain_content`, of a file; also empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return explain_content(file.read(HEAD_BYTES))
    except OSError:
        return ""


def find_unfetched(directory: Path) -> list[tuple[Path, str]]:
    """The files below a directory that were not fetched, with what each is; hidden files and pages are left out."""
    files = (entry for entry in _files(directory) if entry.suffix.lower() not in _PAGES)
    return sorted((entry, what) for entry in files if (what := explain_file(entry)))


def _files(directory: Path) -> Iterator[Path]:
    """At most `_MAX_ENTRIES` files below a directory, without following links to directories."""
    seen = 0
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN) and name != "__pycache__")
        for name in names:
            seen += 1
            if seen > _MAX_ENTRIES:
                return
            if not name.startswith(_HIDDEN):
                path = Path(folder, name)
                if path.is_file():  # a pipe would never be read to its end
                    yield path

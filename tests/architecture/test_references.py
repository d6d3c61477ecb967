"""Files and classes that pages and docstrings name are where they say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from architecture.sources import GUEST, HOST, ROOT, python_files, tracked_files

ABOUT_CODE = ("docs/explanation", "docs/decisions")
"""Folders of pages that name this project's files; other pages name those of their readers."""
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|js|css|html|proto|toml|md))`")
_NAME = re.compile(r"`((?:[a-z_]\w*\.)+)([A-Z]\w+)[`.(]")
_OF_OTHERS = {"pb_utils", "inference", "tritonserver", "torch"}
"""First parts of names of other projects, or of their protocols, that may not be installed here."""


def texts() -> list[tuple[str, str]]:
    """Path and text of every page and file that may name others."""
    pages = [path for folder in ABOUT_CODE for path in sorted((ROOT / folder).glob("*.md"))]
    pages.append(ROOT / "docs" / "glossary.md")
    found = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in pages]
    return found + [(source.path, source.text) for source in python_files(HOST, GUEST, ROOT / "backends")]


def missing_paths(named: list[tuple[str, str]], files: list[str]) -> list[str]:
    """Paths of the texts that no file ends with."""
    ends = {"/".join(parts[start:]) for file in files for parts in [file.split("/")] for start in range(len(parts))}
    return [f"{place}: {path}" for place, text in named for path in _PATH.findall(text) if path not in ends]


def missing_names(named: list[tuple[str, str]], modules: dict[str, str]) -> list[str]:
    """Names in modules, as `module.Name`, that no module of ours with that name has; *modules*: text by its last name."""
    found = []
    for place, text in named:
        for dotted, name in _NAME.findall(text):
            parts = dotted.strip(".").split(".")
            if parts[0] in _OF_OTHERS or parts[0] in sys.stdlib_module_names:
                continue
            if not re.search(rf"\b{name}\b", modules.get(parts[-1], "")):
                found.append(f"{place}: {dotted}{name}")
    return found


def modules() -> dict[str, str]:
    """The texts of all modules by their last name; a package has those of all its modules."""
    found: dict[str, str] = {}
    for source in python_files(HOST, GUEST, ROOT / "backends"):
        for name in {Path(source.path).stem, *Path(source.path).parts[1:-1]}:
            found[name] = found.get(name, "") + source.text
    return found


def test_paths_lead_to_files() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in tracked_files()]
    assert missing_paths(texts(), files) == []


def test_names_are_in_the_modules_that_are_named_before_them() -> None:
    assert missing_names(texts(), modules()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("see `b/c.py`", []), ("see `a/b/c.py`", []), ("see `x/c.py`", ["page: x/c.py"]), ("`c.py` of a user", [])],
)
def test_a_path_is_looked_for_at_the_end_of_files(text: str, expected: list[str]) -> None:
    assert missing_paths([("page", text)], ["a/b/c.py"]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`c.Name`", []),
        ("`b.c.Name.method`", []),
        ("`c.Other`", ["page: c.Other"]),
        ("`gone.Name`", ["page: gone.Name"]),
        ("`queue.SimpleQueue`, `pb_utils.Tensor`", []),
    ],
)
def test_a_name_is_looked_for_in_its_module(text: str, expected: list[str]) -> None:
    assert missing_names([("page", text)], {"c": "class Name: ..."}) == expected

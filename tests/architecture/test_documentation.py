"""Docstrings, types and reasons that a reader can count on."""

from __future__ import annotations

import re

from architecture import rules
from architecture.sources import GUEST, HOST, ROOT, python_files

PRODUCT = (HOST, GUEST)


def test_functions_have_return_types() -> None:
    assert rules.functions_without_return_type(python_files(*PRODUCT)) == []


def test_suppressed_warnings_have_a_reason() -> None:
    assert rules.unexplained_suppressions(python_files(*PRODUCT, ROOT / "backends")) == []


def test_the_guest_is_written_in_python_3_8() -> None:
    assert rules.newer_syntax_than((3, 8), python_files(GUEST, ROOT / "backends")) == []


def test_changes_are_of_kinds_that_the_changelog_has() -> None:
    """Towncrier leaves others out in silence."""
    kinds = set(re.findall(r'tool\.towncrier\.type\]\]\ndirectory = "(\w+)"', (ROOT / "pyproject.toml").read_text()))
    assert kinds >= {"feature", "fix"}
    names = [path.name for path in (ROOT / "docs" / "changes").glob("*.md") if path.name != "README.md"]
    assert [name for name in names if name.split(".")[-2] not in kinds] == []

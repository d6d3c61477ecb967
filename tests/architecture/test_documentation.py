"""Docstrings, types and reasons that a reader can count on."""

from __future__ import annotations

from architecture import rules
from architecture.sources import GUEST, HOST, ROOT, python_files

PRODUCT = (HOST, GUEST)


def test_functions_have_return_types() -> None:
    assert rules.functions_without_return_type(python_files(*PRODUCT)) == []


def test_suppressed_warnings_have_a_reason() -> None:
    assert rules.unexplained_suppressions(python_files(*PRODUCT, ROOT / "backends")) == []


def test_the_guest_is_written_in_python_3_8() -> None:
    assert rules.newer_syntax_than((3, 8), python_files(GUEST, ROOT / "backends")) == []

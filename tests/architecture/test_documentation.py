"""Docstrings, types and reasons that a reader can count on."""

from __future__ import annotations

from architecture import rules
from architecture.sources import GUEST, HOST, ROOT, python_files

PRODUCT = (HOST, GUEST)


DOCUMENTED_ELSEWHERE = "stubs/naiad_stub/native/functions/"
"""Its methods are the functions of Triton's C API, under their names: the API's headers document them."""


def test_public_functions_have_docstrings() -> None:
    undocumented = rules.undocumented_functions(python_files(*PRODUCT))
    assert [place for place in undocumented if not place.startswith(DOCUMENTED_ELSEWHERE)] == []
    elsewhere = [place.rpartition(" ")[2] for place in undocumented if place.startswith(DOCUMENTED_ELSEWHERE)]
    assert [name for name in elsewhere if not name.startswith(("backend_", "server_"))] == []


def test_modules_and_public_classes_have_docstrings() -> None:
    assert rules.undocumented_modules_and_classes(python_files(*PRODUCT)) == []


def test_functions_have_return_types() -> None:
    assert rules.functions_without_return_type(python_files(*PRODUCT)) == []


def test_suppressed_warnings_have_a_reason() -> None:
    assert rules.unexplained_suppressions(python_files(*PRODUCT, ROOT / "backends")) == []


def test_the_guest_is_written_in_python_3_8() -> None:
    assert rules.newer_syntax_than((3, 8), python_files(GUEST, ROOT / "backends")) == []

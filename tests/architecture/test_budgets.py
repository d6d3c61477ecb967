"""Sizes, documentation and types that a reader can count on; checked by a test, not by taste."""

from __future__ import annotations

import ast

import pytest
from architecture.sources import GUEST, HOST, ROOT, Function, Source, python_files

MODULE_LINES = 400
FUNCTION_LINES = 60

PRODUCT = (HOST, GUEST)
EVERYTHING = (*PRODUCT, ROOT / "backends", ROOT / "bench", ROOT / "envs", ROOT / "examples", ROOT / "tests")


def _lines_without_docstring(function: Function) -> int:
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        assert docstring.end_lineno is not None
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def _is_overload_or_setter(function: Function) -> bool:
    """What the property or the implementation beside it documents."""
    return any(
        (isinstance(decorator, ast.Name) and decorator.id == "overload")
        or (isinstance(decorator, ast.Attribute) and decorator.attr in {"overload", "setter"})
        for decorator in function.decorator_list
    )


def _place(source: Source, function: Function) -> str:
    return f"{source.path}:{function.lineno}: {function.name}"


def test_modules_are_read_in_one_sitting() -> None:
    long = {source.path: source.text.count("\n") for source in python_files(*EVERYTHING)}

    assert {path: lines for path, lines in long.items() if lines > MODULE_LINES} == {}


def test_functions_fit_on_a_screen() -> None:
    long = {
        _place(source, function): lines
        for source in python_files(*EVERYTHING)
        for function, _ in source.functions()
        if (lines := _lines_without_docstring(function)) > FUNCTION_LINES
    }

    assert long == {}


def test_public_functions_say_what_they_are_for() -> None:
    silent = [
        _place(source, function)
        for source in python_files(*PRODUCT)
        for function, is_public in source.functions()
        if is_public and not ast.get_docstring(function) and not _is_overload_or_setter(function)
    ]

    assert silent == []


def test_modules_and_public_classes_say_what_they_are_for() -> None:
    silent = [
        f"{source.path}:{getattr(node, 'lineno', 1)}"
        for source in python_files(*PRODUCT)
        for node in (source.tree, *source.tree.body)
        if isinstance(node, ast.Module) or (isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
        if not ast.get_docstring(node)
    ]

    assert silent == []


def test_functions_say_what_they_return() -> None:
    silent = [
        _place(source, function)
        for source in python_files(*PRODUCT)
        for function, _ in source.functions()
        if function.returns is None
    ]

    assert silent == []


@pytest.mark.parametrize("source", python_files(GUEST), ids=lambda source: source.path)
def test_the_guest_is_written_in_python_3_8(source: Source) -> None:
    ast.parse(source.text, source.path, feature_version=(3, 8))

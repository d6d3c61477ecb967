"""Documentation and types that a reader can count on."""

from __future__ import annotations

import ast

import pytest
from architecture.sources import GUEST, HOST, Function, Source, python_files

PRODUCT = (HOST, GUEST)


def _is_overload_or_setter(function: Function) -> bool:
    """What the property or the implementation beside it documents."""
    return any(
        (isinstance(decorator, ast.Name) and decorator.id == "overload")
        or (isinstance(decorator, ast.Attribute) and decorator.attr in {"overload", "setter"})
        for decorator in function.decorator_list
    )


def _place(source: Source, function: Function) -> str:
    return f"{source.path}:{function.lineno}: {function.name}"


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

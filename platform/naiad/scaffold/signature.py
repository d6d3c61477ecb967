"""What a function takes and gives, as tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from naiad.errors import ScaffoldError
from naiad.scaffold.hints import UNKNOWN, Form, Tensor, of_docstring, of_hint, of_literal
from naiad.scaffold.locate import Found

__all__ = ["Parameter", "Result", "Signature", "read_signature"]

_TAKEN = "int, float, bool, str, bytes, numpy arrays and scalars, and lists of those"
_RECORDS = {"TypedDict": "[{name!r}]", "NamedTuple": ".{name}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter.

    Attributes:
        name: Its name, and the input's.
        tensor: What it is given.
        optional: It has a default value.
        positional: It has no name for callers.
    """

    name: str
    tensor: Tensor
    optional: bool = False
    positional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One output: its name, what it is, and where it is in what the function returns, `[0]` or `.total`."""

    name: str
    tensor: Tensor
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A function's parameters and results; notes say what was assumed."""

    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()


def read_signature(found: Found) -> Signature:
    """The tensors of a function, by its type hints, else its docstring, else its default values.

    Raises:
        ScaffoldError: If something of it cannot be a tensor.
    """
    notes: list[str] = []
    parameters = tuple(_parameters(found, notes))
    if not parameters:
        raise ScaffoldError(f"{_where(found)} takes nothing, and a request has at least one input; give it a parameter")
    return Signature(parameters=parameters, results=tuple(_results(found, notes)), notes=tuple(notes))


def _parameters(found: Found, notes: list[str]) -> Iterator[Parameter]:
    given = found.function.args
    if given.vararg is not None:
        raise ScaffoldError(f"{_where(found)} takes *{given.vararg.arg}, and inputs have names; take a list instead")
    if given.kwarg is not None:
        notes.append(f"**{given.kwarg.arg} of {found.function.name} is left out: inputs have names")
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    for argument, default in [
        *zip(plain, defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]:
        yield Parameter(
            name=argument.arg,
            tensor=_tensor(found, argument, default, notes),
            optional=default is not None,
            positional=argument in given.posonlyargs,
        )


def _tensor(found: Found, argument: ast.arg, default: ast.expr | None, notes: list[str]) -> Tensor:
    said = _documented(ast.get_docstring(found.function) or "", argument.arg)
    hinted = of_hint(argument.annotation)
    if argument.annotation is not None and hinted is None:
        raise ScaffoldError(
            f"{_where(found)}: '{argument.arg}: {ast.unparse(argument.annotation)}' can be no tensor; "
            f"inputs are {_TAKEN}"
        )
    if hinted is not None:
        if said is None or said.form is not Form.ARRAY or hinted.form is not Form.ARRAY:
            return hinted
        # Only words say which shape an array has, and its type if the hint leaves that open.
        return said if hinted == UNKNOWN else replace(hinted, dims=said.dims)
    known = said or of_literal(default)
    if known is None:
        notes.append(f"'{argument.arg}' has no type hint: taken for an array of float32, see config.pbtxt")
    return known or UNKNOWN


def _documented(docstring: str, name: str) -> Tensor | None:
    """What a docstring says of a parameter, in the form of Google, numpydoc or Sphinx."""
    escaped = re.escape(name)
    for pattern in (
        rf"^\s*{escaped}\s*\(([^)]*(?:\([^)]*\)[^)]*)*)\)\s*:(.*)$",
        rf":type\s+{escaped}:(.*)()$",
        rf":param\s+(\S+)\s+{escaped}:(.*)$",
        rf"^\s*{escaped}\s*:\s+(.*)()$",
        rf"^\s*{escaped}\s*:()(.*)$",
    ):
        match = re.search(pattern, docstring, re.MULTILINE)
        if match:
            kind, text = (part.strip() for part in match.groups())
            tensor = of_docstring(kind or ("array" if "shape" in text else ""), text)
            if tensor is not None:
                return tensor
    return None


def _results(found: Found, notes: list[str]) -> Iterator[Result]:
    hint = found.function.returns
    if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
        hint = ast.parse(hint.value, mode="eval").body
    if hint is None:
        said = _documented_result(ast.get_docstring(found.function) or "")
        if said is None:
            notes.append(f"{found.function.name} does not say what it returns: taken for an array of float32")
        yield Result(name="result", tensor=said or UNKNOWN)
        return
    match hint:
        case ast.Subscript(value=ast.Name(id="tuple" | "Tuple"), slice=ast.Tuple(elts=parts)) if not _is_open(parts):
            for number, part in enumerate(parts):
                yield Result(name=f"result_{number}", tensor=_returned(found, part), part=f"[{number}]")
        case ast.Name(id=name) if (fields := _fields(found.tree, name)) is not None:
            for field, (kind, place) in fields.items():
                yield Result(name=field, tensor=_returned(found, kind), part=place)
        case _:
            yield Result(name="result", tensor=_returned(found, hint))


def _is_open(parts: list[ast.expr]) -> bool:
    return isinstance(parts[-1], ast.Constant) and parts[-1].value is ...


def _returned(found: Found, hint: ast.expr) -> Tensor:
    tensor = of_hint(hint)
    if tensor is None:
        raise ScaffoldError(
            f"{_where(found)} returns '{ast.unparse(hint)}', which can be no tensor; outputs are {_TAKEN}, tuples of "
            "them, and a TypedDict, NamedTuple or dataclass of the same module"
        )
    return tensor


def _documented_result(docstring: str) -> Tensor | None:
    match = re.search(r"Returns:?\s*\n(?:\s*-+\s*\n)?\s*([^\n:]+)|:rtype:\s*(.+)", docstring)
    return of_docstring((match[1] or match[2]).strip()) if match else None


def _fields(tree: ast.Module, name: str) -> dict[str, tuple[ast.expr, str]] | None:
    """The fields of a record class of the module with how each is reached; None if it is none."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            part = next((_RECORDS[base] for base in bases if base in _RECORDS), "")
            if not part and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
                part = _RECORDS["NamedTuple"]
            return {
                field.target.id: (field.annotation, part.format(name=field.target.id))
                for field in node.body
                if part and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            } or None
    return None


def _where(found: Found) -> str:
    return f"{found.path}:{found.function.lineno}: '{found.function.name}'"

"""What a function takes and gives, as tensors."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from naiad.errors import ScaffoldError
from naiad.protocol.datatypes import Datatype
from naiad.scaffold.source import Found

__all__ = ["Form", "Parameter", "Result", "Signature", "Tensor", "of_docstring", "of_hint", "read_signature"]

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


_SCALARS = {
    "int": Datatype.INT64,
    "float": Datatype.FP64,
    "bool": Datatype.BOOL,
    "str": Datatype.BYTES,
    "bytes": Datatype.BYTES,
}
_LISTS = frozenset({"list", "List", "Sequence", "Iterable", "Collection", "MutableSequence", "tuple", "Tuple"})
_ARRAYS = frozenset({"ndarray", "NDArray", "ArrayLike", "array", "array_like", "array-like", "np.array"})
_WRAPPERS = frozenset({"Optional", "Annotated", "Final"})
_NUMPY = {
    "bool": Datatype.BOOL,
    "half": Datatype.FP16,
    "single": Datatype.FP32,
    "double": Datatype.FP64,
    "float": Datatype.FP64,
    "int": Datatype.INT64,
    "str": Datatype.BYTES,
    "bytes": Datatype.BYTES,
    "object": Datatype.BYTES,
    **{f"float{bits}": Datatype[f"FP{bits}"] for bits in (16, 32, 64)},
    **{f"{sign}int{bits}": Datatype[f"{sign.upper()}INT{bits}"] for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class Form(enum.Enum):
    """What of Python a tensor is to a function."""

    SCALAR = "one value"
    TEXT = "one str"
    LIST = "a list"
    TEXTS = "a list of str"
    ARRAY = "an array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as configurations have it, and what it is to a function.

    Attributes:
        datatype: Of its elements.
        dims: Its shape, -1 where any size will do.
        form: What the function takes or gives.
    """

    datatype: Datatype
    dims: tuple[int, ...]
    form: Form


UNKNOWN = Tensor(datatype=Datatype.FP32, dims=(-1,), form=Form.ARRAY)
"""What is assumed where nothing is said."""


def of_hint(hint: ast.expr | None) -> Tensor | None:
    """The tensor of a type hint; None if the hint is none that a tensor could be."""
    match hint:
        case ast.Constant(value=str(text)):
            return of_hint(_parsed(text))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return of_hint(left if _is_none(right) else right) if _is_none(left) or _is_none(right) else None
        case ast.Subscript(value=base, slice=inner):
            return _of_generic(_name(base), inner)
        case ast.Name() | ast.Attribute():
            return _of_name(hint)
        case _:
            return None


def of_literal(value: ast.expr | None) -> Tensor | None:
    """The tensor of a default value."""
    match value:
        case ast.Constant(value=bool() | int() | float() | str() | bytes() as literal):
            return of_hint(ast.Name(id=type(literal).__name__))
        case ast.UnaryOp(operand=operand):
            return of_literal(operand)
        case _:
            return None


def of_docstring(kind: str, text: str = "") -> Tensor | None:
    """The tensor of a type in a docstring, `float` or `array of float64, shape (n, 3)`; None if it is none.

    Args:
        kind: The type.
        text: What else is said, perhaps a shape.
    """
    words = re.split(r",\s*(?:optional|default|shape|dtype)\b|\s+of shape|\s+with", kind, maxsplit=1)[0].strip()
    entry = f"{kind}, {text}"
    element = re.fullmatch(r"(?P<base>[\w.-]+?)s?\s+of\s+(?P<of>[\w.]+?)s?", words)
    tensor = _of_phrase(element["base"], element["of"]) if element else of_hint(_parsed(words))
    if tensor is None and words.split(" ")[0] in _ARRAYS:
        tensor = UNKNOWN
    if tensor is None or tensor.form is not Form.ARRAY:
        return tensor
    dtype = re.search(r"dtype\s*[=:]?\s*(?:np\.|numpy\.)?(\w+)", entry)
    datatype = _NUMPY.get(dtype[1].rstrip("_"), tensor.datatype) if dtype else tensor.datatype
    shape = re.search(r"shape\s*[=:]?\s*[\[(]([^)\]]+)[\])]", entry)
    if shape is None:
        return replace(tensor, datatype=datatype)
    sizes = [size.strip() for size in shape[1].split(",") if size.strip()]
    return replace(tensor, datatype=datatype, dims=tuple(int(size) if size.isdigit() else -1 for size in sizes))


def _of_phrase(base: str, element: str) -> Tensor | None:
    if base.rpartition(".")[2] in _ARRAYS:
        return replace(UNKNOWN, datatype=_NUMPY.get(element.rpartition(".")[2], UNKNOWN.datatype))
    return of_hint(_parsed(f"{base}[{element}]"))


def _of_generic(base: str, inner: ast.expr) -> Tensor | None:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if base in _WRAPPERS:
        return of_hint(parts[0])
    if base in _ARRAYS:
        return replace(UNKNOWN, datatype=_element_type(parts[-1]))
    if base == "dtype":
        return None
    if base not in _LISTS or (base in {"tuple", "Tuple"} and not _is_ellipsis(parts[-1])):
        return None
    element = of_hint(parts[0])
    if element is None:
        return None
    match element.form:
        case Form.SCALAR:
            return replace(element, dims=(-1,), form=Form.LIST)
        case Form.TEXT:
            return replace(element, dims=(-1,), form=Form.TEXTS)
        case Form.LIST:
            return replace(element, dims=(-1, *element.dims))
        case _:
            return None


def _of_name(hint: ast.expr) -> Tensor | None:
    name = _name(hint)
    if name in _ARRAYS:
        return UNKNOWN
    if name in _LISTS:
        return Tensor(datatype=Datatype.FP64, dims=(-1,), form=Form.LIST) if name not in {"tuple", "Tuple"} else None
    if name in _SCALARS:
        form = Form.TEXT if name == "str" else Form.SCALAR
        return Tensor(datatype=_SCALARS[name], dims=(1,), form=form)
    if isinstance(hint, ast.Attribute) and name.rstrip("_") in _NUMPY:
        return Tensor(datatype=_NUMPY[name.rstrip("_")], dims=(1,), form=Form.SCALAR)
    return None


def _element_type(hint: ast.expr) -> Datatype:
    """Of `np.float32`, or of `np.dtype[np.float32]`."""
    if isinstance(hint, ast.Subscript):
        return _element_type(hint.slice)
    return _NUMPY.get(_name(hint).rstrip("_"), UNKNOWN.datatype)


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None

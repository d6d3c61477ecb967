"""From type hints, as they are written, to tensors: `list[float]` is FP64 of one axis.

Hints are read as syntax and never evaluated, so that neither the function nor what it imports has to be installed here.
"""

from __future__ import annotations

import ast
import enum
import re
from dataclasses import dataclass, replace

from naiad.protocol.datatypes import Datatype

__all__ = ["UNKNOWN", "Form", "Tensor", "of_docstring", "of_hint", "of_literal"]

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

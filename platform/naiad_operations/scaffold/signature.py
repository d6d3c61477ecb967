"""The tensors of a function: its parameters become inputs, its results become outputs.

Types come from type hints, else from default values. Hints are read as syntax and never evaluated, so that neither the
function nor the modules it imports need to be installed here.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from naiad.core.errors import ScaffoldError
from naiad.protocol.datatypes import Datatype
from naiad_operations.scaffold.source import FunctionSource

_SCALARS = {
    "int": Datatype.INT64,
    "float": Datatype.FP64,
    "bool": Datatype.BOOL,
    "str": Datatype.BYTES,
    "bytes": Datatype.BYTES,
}
_LISTS = frozenset({"list", "List", "Sequence", "Iterable", "Collection", "MutableSequence", "tuple", "Tuple"})
_ARRAYS = frozenset({"ndarray", "NDArray", "ArrayLike"})
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


class PythonForm(enum.Enum):
    """The Python type as which a function takes or returns a tensor."""

    SCALAR = "one value"
    TEXT = "one str"
    LIST = "a list"
    TEXTS = "a list of str"
    ARRAY = "an array"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType:
    """The type of a tensor."""

    datatype: Datatype
    dims: tuple[int, ...]  # the shape as in `config.pbtxt`, with -1 for any size
    form: PythonForm


# The type that is assumed where neither a hint nor a default value gives one.
UNKNOWN = TensorType(datatype=Datatype.FP32, dims=(-1,), form=PythonForm.ARRAY)


def of_hint(hint: ast.expr | None) -> TensorType | None:
    """The tensor type of a type hint; None if no tensor type corresponds to the hint."""
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


def of_literal(value: ast.expr | None) -> TensorType | None:
    """The tensor type of a default value; None if no tensor type corresponds to it."""
    match value:
        case ast.Constant(value=bool() | int() | float() | str() | bytes() as literal):
            return of_hint(ast.Name(id=type(literal).__name__))
        case ast.UnaryOp(operand=operand):
            return of_literal(operand)
        case _:
            return None


def _of_generic(base: str, inner: ast.expr) -> TensorType | None:
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
    if element.form is PythonForm.LIST:
        return replace(element, dims=(-1, *element.dims))
    form = {PythonForm.SCALAR: PythonForm.LIST, PythonForm.TEXT: PythonForm.TEXTS}.get(element.form)
    return None if form is None else replace(element, dims=(-1,), form=form)


def _of_name(hint: ast.expr) -> TensorType | None:
    name = _name(hint)
    if name in _ARRAYS:
        return UNKNOWN
    if name in {"tuple", "Tuple"}:
        return None
    if name in _LISTS:
        return TensorType(datatype=Datatype.FP64, dims=(-1,), form=PythonForm.LIST)
    if name in _SCALARS:
        form = PythonForm.TEXT if name == "str" else PythonForm.SCALAR
        return TensorType(datatype=_SCALARS[name], dims=(1,), form=form)
    if isinstance(hint, ast.Attribute) and name.rstrip("_") in _NUMPY:
        return TensorType(datatype=_NUMPY[name.rstrip("_")], dims=(1,), form=PythonForm.SCALAR)
    return None


def _element_type(hint: ast.expr) -> Datatype:
    """The datatype of `np.float32` or `np.dtype[np.float32]`."""
    if isinstance(hint, ast.Subscript):
        return _element_type(hint.slice)
    return _NUMPY.get(_name(hint).rstrip("_"), UNKNOWN.datatype)


def _name(node: ast.expr) -> str:
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


# -- from a function to its tensors -----------------------------------------------------------------------------------

_SUPPORTED = "int, float, bool, str, bytes, numpy arrays and scalars, and lists of those"
_RECORDS = {"TypedDict": "[{name!r}]", "NamedTuple": ".{name}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of the function, and the input of the same name."""

    name: str
    tensor: TensorType
    optional: bool = False
    positional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One output; *part* selects it from the returned value (`[0]`, `.total`) and is empty for the whole value."""

    name: str
    tensor: TensorType
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The inputs and outputs of a function."""

    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()


T = TypeVar("T", Parameter, Result)


def read_signature(source: FunctionSource, ask: Callable[[str], int] | None = None) -> Signature:
    """The inputs and outputs of a function; *ask* returns an array's dimensions (None: assume one, with a note).

    Raises:
        ScaffoldError: If a parameter or result cannot be a tensor, or the function has no parameter.
    """
    notes: list[str] = []
    parameters = tuple(_parameters(source, notes))
    if not parameters:
        raise ScaffoldError(
            f"cannot serve {_where(source)}: it has no parameters, and a request has at least one input; add one"
        )
    results = tuple(_results(source, notes))
    # Type hints of arrays have no shape, and calling the function to see one would run the author's code.
    given: tuple[Parameter | Result, ...] = (*parameters, *results)
    arrays = [one.name for one in given if one.tensor.form is PythonForm.ARRAY]
    if ask is not None:
        dims = {name: (-1,) * ask(name) for name in dict.fromkeys(arrays)}
        parameters, results = tuple(_with_dims(parameters, dims)), tuple(_with_dims(results, dims))
    elif arrays:
        notes.append(
            f"the number of dimensions of {', '.join(map(repr, arrays))} is assumed to be one: if it is another, "
            "write dims: [ -1, -1 ] or the like in config.pbtxt"
        )
    return Signature(parameters=parameters, results=results, notes=tuple(notes))


def _with_dims(tensors: Iterable[T], dims: Mapping[str, tuple[int, ...]]) -> Iterator[T]:
    for one in tensors:
        is_array = one.tensor.form is PythonForm.ARRAY
        yield replace(one, tensor=replace(one.tensor, dims=dims[one.name])) if is_array else one


def _parameters(source: FunctionSource, notes: list[str]) -> Iterator[Parameter]:
    given = source.function.args
    if given.vararg is not None:
        raise ScaffoldError(
            f"cannot serve {_where(source)}: *{given.vararg.arg} has no name for an input; use a parameter with a list"
        )
    if given.kwarg is not None:
        notes.append(f"**{given.kwarg.arg} of {source.function.name} is ignored: the names of inputs are fixed")
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    for argument, default in [
        *zip(plain, defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]:
        yield Parameter(
            name=argument.arg,
            tensor=_tensor(source, argument, default, notes),
            optional=default is not None,
            positional=argument in given.posonlyargs,
        )


def _tensor(source: FunctionSource, argument: ast.arg, default: ast.expr | None, notes: list[str]) -> TensorType:
    if argument.annotation is not None:
        hinted = of_hint(argument.annotation)
        if hinted is None:
            raise ScaffoldError(
                f"cannot serve {_where(source)}: '{argument.arg}: {ast.unparse(argument.annotation)}' is not a tensor; "
                f"supported types are {_SUPPORTED}"
            )
        return hinted
    known = of_literal(default)
    if known is None:
        notes.append(f"'{argument.arg}' has no type hint: assumed an array of float32, see config.pbtxt")
    return known or UNKNOWN


def _results(source: FunctionSource, notes: list[str]) -> Iterator[Result]:
    hint = source.function.returns
    if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
        hint = ast.parse(hint.value, mode="eval").body
    if hint is None:
        notes.append(f"{source.function.name} has no return type: assumed an array of float32")
        yield Result(name="result", tensor=UNKNOWN)
        return
    match hint:
        case ast.Subscript(value=ast.Name(id="tuple" | "Tuple"), slice=ast.Tuple(elts=parts)) if not _is_ellipsis(
            parts[-1]
        ):
            for number, part in enumerate(parts):
                yield Result(name=f"result_{number}", tensor=_returned(source, part), part=f"[{number}]")
        case ast.Name(id=name) if (fields := _fields(source.tree, name)) is not None:
            for field, (kind, place) in fields.items():
                yield Result(name=field, tensor=_returned(source, kind), part=place)
        case _:
            yield Result(name="result", tensor=_returned(source, hint))


def _returned(source: FunctionSource, hint: ast.expr) -> TensorType:
    tensor = of_hint(hint)
    if tensor is None:
        raise ScaffoldError(
            f"cannot serve {_where(source)}: it returns '{ast.unparse(hint)}', which is not a tensor; supported types "
            f"are {_SUPPORTED}, tuples of them, and a TypedDict, NamedTuple or dataclass of the same module"
        )
    return tensor


def _fields(tree: ast.Module, name: str) -> dict[str, tuple[ast.expr, str]] | None:
    """The fields of a TypedDict, NamedTuple or dataclass of the module: type and selecting code by name; else None."""
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


def _where(source: FunctionSource) -> str:
    return f"{source.path}:{source.function.lineno}: '{source.function.name}'"

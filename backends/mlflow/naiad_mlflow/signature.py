"""The tensors and parameters that a signature of MLflow stands for.

A column is an input of its name, with one value for each row. Columns of one type without names are one matrix, and a
tensor is an input of its name and shape.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Mapping, Optional, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils
from saved_models.interface import ModelInterface, ModelTensor
from saved_models.settings import ModelSettings

from naiad_mlflow.files import Metadata

INPUT, OUTPUT = "input", "output"  # names of an input and an output that the signature gives none
PREFIX = "params."  # before the name of a parameter in requests: for those with a name that the server reads itself
_OF_THE_SERVER = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)

_COLUMNS = {
    "boolean": "TYPE_BOOL",
    "integer": "TYPE_INT32",
    "long": "TYPE_INT64",
    "float": "TYPE_FP32",
    "double": "TYPE_FP64",
}  # types of columns that tensors have as well. Others are strings: texts, bytes, times in ISO 8601, and else JSON
_TENSOR = "tensor"
_TEXTS = frozenset({"string", "binary", "datetime"})
_TENSORS = {np.dtype(kind): name for name, kind in pb_utils.TRITON_STRING_TO_NUMPY.items() if name != "TYPE_STRING"}


class Form(enum.Enum):
    """What `predict` is given."""

    ARRAY = "one array"
    ARRAYS = "arrays by their names"
    TABLE = "a table with named columns"
    MATRIX = "a table without names"
    LIST = "a list of values"
    RECORDS = "a list of dictionaries"


@dataclass(frozen=True)
class Column:
    """A column or a tensor of a schema."""

    kind: str  # MLflow's name of a column's type, `json` for types without one; empty for tensors
    tensor: ModelTensor  # as which requests have it


@dataclass(frozen=True)
class Parameter:
    """A parameter of requests."""

    name: str
    kind: str  # MLflow's name of its type
    is_list: bool  # whether its values are lists, which requests give as JSON


@dataclass(frozen=True)
class Signature:
    """What a model takes."""

    form: Optional[Form]  # None for a model without a signature
    inputs: Tuple[Column, ...]  # columns or tensors
    parameters: Dict[str, Parameter]  # of requests, by their names
    optional: FrozenSet[str] = frozenset()  # names of outputs that predictions may lack


def signature_of(metadata: Metadata, settings: ModelSettings) -> Signature:
    """What a model takes; ModelLoadError if the configuration lacks an input, or has one that the signature has not."""
    parameters = {
        entry["name"]: Parameter(entry["name"], str(entry["type"]), is_list=entry.get("shape") is not None)
        for entry in _entries(metadata, "params", settings) or ()
    }
    for name in parameters:
        if name in _OF_THE_SERVER or name.startswith("triton_"):
            pb_utils.Logger.log_warn(
                f"the server reads the request parameter '{name}' itself, so it does not reach the parameter of this "
                f"name in the signature of model '{settings.name}'; clients send that as '{PREFIX}{name}'"
            )
    outputs = _columns(_entries(metadata, "outputs", settings) or (), OUTPUT)
    optional = frozenset(column.tensor.name for column in outputs if column.tensor.is_optional)
    entries = _entries(metadata, "inputs", settings)
    if entries is None:
        return Signature(None, (), parameters, optional)
    form, inputs = _form(entries, is_typed=metadata.is_typed), _columns(entries, INPUT)
    configured = {tensor.name for tensor in settings.inputs}
    if len(inputs) == 1 and not entries[0].get("name"):
        if len(configured) != 1:
            raise settings.error(
                f"its signature in '{metadata.path}' has one input without a name, and the configuration has "
                f"{', '.join(sorted(configured)) or 'none'}"
            )
        return Signature(form, inputs, parameters, optional)
    tensors = [column.tensor for column in inputs]
    missing = [tensor.name for tensor in tensors if not tensor.is_optional and tensor.name not in configured]
    unknown = sorted(configured - {tensor.name for tensor in tensors})
    if missing or unknown:
        what = f"lacks input '{missing[0]}'" if missing else f"has input '{unknown[0]}'"
        raise settings.error(
            f"the configuration {what}; the inputs of the signature in '{metadata.path}' are "
            f"{', '.join(tensor.name for tensor in tensors)}"
        )
    return Signature(form, inputs, parameters, optional)


def interface_of(metadata: Metadata, settings: ModelSettings) -> ModelInterface:
    """The tensors that a signature stands for; ModelLoadError without a signature, unless they are configured."""
    found = []
    for side, default in (("input", INPUT), ("output", OUTPUT)):
        entries = _entries(metadata, f"{side}s", settings)
        if entries is None and not settings.config.get(side):
            lacks = "signature" if metadata.signature is None else f"{side}s in its signature"
            raise settings.error(
                f"'{metadata.path}' has no {lacks}, which would say what its tensors are; add one "
                "(mlflow.models.set_signature(DIRECTORY, mlflow.models.infer_signature(INPUTS, OUTPUTS))), or write "
                "input and output in config.pbtxt"
            )
        found.append(tuple(column.tensor for column in _columns(entries or (), default)))
    return ModelInterface(inputs=found[0], outputs=found[1])


def _entries(metadata: Metadata, key: str, settings: ModelSettings) -> Optional[Sequence[Mapping[str, Any]]]:
    """A list of the signature, which `MLmodel` has as JSON; None without it."""
    text = (metadata.signature or {}).get(key)
    if not text:
        return None
    try:
        entries = json.loads(text)
        if key == "params":
            [(entry["name"], entry["type"]) for entry in entries]
        else:
            _columns(entries, "")
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise settings.error(
            f"'{metadata.path}' has invalid {key} in its signature ({type(problem).__name__}: {problem}); save the "
            "model again, or write input and output in config.pbtxt"
        ) from None
    return entries or None


def _form(entries: Sequence[Mapping[str, Any]], *, is_typed: bool) -> Form:
    is_named = bool(entries[0].get("name"))
    if entries[0]["type"] == _TENSOR:
        return Form.ARRAYS if is_named else Form.ARRAY
    if is_named:
        return Form.RECORDS if is_typed else Form.TABLE
    return Form.LIST if is_typed else Form.MATRIX


def _columns(entries: Sequence[Mapping[str, Any]], default: str) -> Tuple[Column, ...]:
    if entries and not entries[0].get("name") and len(entries) > 1:
        if all(entry["type"] == entries[0]["type"] for entry in entries):
            return (_column(entries[0], default, len(entries)),)
        return tuple(_column(entry, f"{default}__{number}", 1) for number, entry in enumerate(entries))
    return tuple(_column(entry, entry.get("name") or default, 1) for entry in entries)


def _column(entry: Mapping[str, Any], name: str, size: int) -> Column:
    kind = str(entry["type"])
    is_optional = not entry.get("required", not entry.get("optional", False))
    if kind == _TENSOR:
        spec = entry["tensor-spec"]
        dtype = np.dtype(spec["dtype"])
        data_type = "TYPE_STRING" if dtype.kind in "OUS" else _TENSORS.get(dtype, "")
        return Column("", ModelTensor(name, data_type, tuple(map(int, spec["shape"])), str(dtype), is_optional))
    known = kind if kind in _COLUMNS or kind in _TEXTS else "json"
    return Column(known, ModelTensor(name, _COLUMNS.get(kind, "TYPE_STRING"), (-1, size), kind, is_optional))

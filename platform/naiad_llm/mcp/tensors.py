"""Arguments of a tool as tensors, tensors as its result, and the JSON schema of both.

A tensor is a value where it has one element, else nested arrays. The batch dimension of a model is left out: a call is
a batch of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from naiad.core.errors import InvalidRequestError
from naiad.frontends.api_page.model_operations import element_schema
from naiad.frontends.kserve_http.json_tensors import from_tensor, pack_strings, to_bytes
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import InputTensor, OutputTensor
from naiad.protocol.metadata import TensorMetadata

_SAFE = 1 << 53  # bounds of larger integers are left out: clients read numbers of schemas as double-precision ones


def item_shape(tensor: TensorMetadata, *, is_batched: bool) -> tuple[int, ...]:
    """The shape of a tensor without the batch dimension; -1 where a dimension is variable."""
    return tensor.shape[1:] if is_batched else tensor.shape


def schema(tensor: TensorMetadata, shape: Sequence[int]) -> dict[str, Any]:
    """The JSON schema of a tensor's value."""
    element = {
        member: value
        for member, value in element_schema(BY_NAME[tensor.datatype]).items()
        if not isinstance(value, int) or abs(value) <= _SAFE
    }
    if _is_single(shape):
        return element
    for size in reversed(shape):
        element = {"type": "array", "items": element}
        if size != -1:
            element.update(minItems=size, maxItems=size)
    return element


def _is_single(shape: Sequence[int]) -> bool:
    return -1 not in shape and prod(shape) == 1


def to_tensor(tensor: TensorMetadata, value: object, *, is_batched: bool) -> InputTensor:
    """The tensor of an argument; raises `NaiadError` if the value does not have its shape and datatype."""
    declared = item_shape(tensor, is_batched=is_batched)
    if _is_single(declared) and not isinstance(value, list):
        shape, elements = declared, [value]
    else:
        shape, elements = _flattened(tensor.name, value, declared)
    full = (1, *shape) if is_batched else tuple(shape)
    datatype = BY_NAME[tensor.datatype]
    if datatype is not Datatype.BYTES:
        return InputTensor(tensor.name, datatype, full, to_bytes(tensor.name, datatype, full, elements))
    if not all(isinstance(element, str) for element in elements):
        raise InvalidRequestError(f"argument '{tensor.name}' must have strings")
    return InputTensor(tensor.name, datatype, full, pack_strings(elements))


def _flattened(name: str, value: object, declared: Sequence[int]) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested arrays, and their elements in row-major order."""
    shape: list[int] = []
    level: list[Any] = [value]
    for size in declared:
        if not all(isinstance(each, list) for each in level):
            raise InvalidRequestError(f"argument '{name}' must be arrays nested {len(declared)} deep")
        sizes = {len(each) for each in level}
        if len(sizes) > 1:
            raise InvalidRequestError(f"argument '{name}' must have arrays of equal lengths")
        found = sizes.pop() if sizes else 0
        if size not in (-1, found):
            raise InvalidRequestError(
                f"argument '{name}' must have the shape {list(declared)} (-1 is any); an array has {found} elements"
            )
        shape.append(found)
        level = [element for each in level for element in each]
    return tuple(shape), level


def to_value(tensor: OutputTensor, *, is_batched: bool) -> Any:
    """The value of an output: a single one, else nested arrays. `NaiadError` if it has no form in JSON."""
    elements = from_tensor(tensor)
    shape = tensor.shape[1:] if is_batched and tensor.shape[:1] == (1,) else tensor.shape
    if len(elements) == 1:
        return elements[0]
    for size in reversed(shape[1:]):
        elements = [elements[start : start + size] for start in range(0, len(elements), size)] if size else []
    return elements

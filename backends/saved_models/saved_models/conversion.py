"""Values of clients as libraries take them, and theirs as tensors. None becomes another one: that is an error."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from saved_models.settings import TensorSettings


class InputError(ValueError):
    """A value of a client that the model cannot take: sent as INVALID_ARG, which clients do not repeat."""


def strings(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The texts of an input; InputError if one is not UTF-8."""
    found: np.ndarray[Any, Any] = np.empty(array.shape, np.object_)
    try:
        found.ravel()[:] = [item if isinstance(item, str) else item.decode() for item in array.ravel().tolist()]
    except UnicodeDecodeError as problem:
        raise InputError(f"input '{name}' has a string that is not UTF-8: {problem}") from None
    return found


def row_values(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The one value of each row; InputError if rows have several values, or none."""
    size = int(np.prod(array.shape[1:], dtype=np.int64))
    if size != 1:
        raise InputError(f"input '{name}' is a column, and has {size} values for each row instead of one")
    return array.reshape(-1)


def as_array(answer: Any) -> np.ndarray[Any, Any]:
    """What a library returned, as an array: also sparse matrices and lists."""
    array: np.ndarray[Any, Any] = np.asarray(answer.toarray() if hasattr(answer, "toarray") else answer)
    if array.dtype.kind == "f" and isinstance(answer, list) and (np.abs(array) >= 2**53).any():
        # numpy makes FP64 of lists with large integers, and from 2**53 on that does not hold each.
        return np.array(answer, np.object_)
    return array


def fitted(array: np.ndarray[Any, Any], tensor: TensorSettings, *, is_batching: bool) -> np.ndarray[Any, Any]:
    """The array with the type of an output, and with a dimension of 1 where one value for each row lacks it.

    ValueError if the type cannot hold a value. Fractions are rounded to the precision of the type.
    """
    array = _converted(array, tensor)
    if array.ndim == len(tensor.dims) + is_batching - 1:
        array = array[..., np.newaxis]
    return array


def _converted(array: np.ndarray[Any, Any], tensor: TensorSettings) -> np.ndarray[Any, Any]:
    if array.dtype.kind in "mM":  # as objects, times are integers
        array = array.astype(str)
    wanted = np.dtype(pb_utils.triton_string_to_numpy(tensor.data_type))
    if wanted in (array.dtype, np.object_):
        return array.astype(wanted, copy=False)
    with np.errstate(over="ignore"):
        if array.dtype.kind == wanted.kind == "f":
            wrong = np.flatnonzero(np.isinf(array.astype(wanted)) & ~np.isinf(array))
        else:
            places = np.flatnonzero(~_are_small(array, wanted)) if array.dtype.kind in "biuf" else range(array.size)
            values = array.ravel().tolist()
            wrong = np.array([place for place in places if not _holds(wanted, values[place])], int)
    if len(wrong):
        value = array.ravel()[wrong[:1]].tolist()[0]
        row = np.unravel_index(wrong[0], array.shape or (1,))[0]
        raise ValueError(
            f"cannot convert output '{tensor.name}' to {tensor.data_type}: the model's value in row {row} is "
            f"{value!r}, which this type cannot hold; write data_type: {_type_for(value)} for this output in "
            "config.pbtxt"
        )
    return array.astype(wanted)


def _are_small(array: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> Any:
    """Which numbers are integers that a type has for sure: most are, and a loop over all would take long."""
    most = 1
    if wanted.kind != "b":
        most = 2 ** (np.finfo(wanted).nmant + 1) if wanted.kind == "f" else min(np.iinfo(wanted).max, 2**53)
    return (array <= most) & (array >= (0 if wanted.kind in {"b", "u"} else -most)) & (array == np.trunc(array))


def _holds(wanted: np.dtype[Any], value: Any) -> bool:
    """Whether a type has this number; one with a fraction may be rounded. Texts are no numbers."""
    is_number = isinstance(value, (numbers.Number, np.bool_))
    try:
        if wanted.kind == "b" or not is_number:
            return is_number and value in (0, 1)
        if wanted.kind in "iu":
            return bool(np.iinfo(wanted).min <= value <= np.iinfo(wanted).max and value == int(value))
        if isinstance(value, (numbers.Integral, np.bool_)):
            return bool(int(wanted.type(int(value))) == value)
        return math.isfinite(wanted.type(float(value))) or not math.isfinite(value)
    except (TypeError, OverflowError):  # of complex numbers, and of those out of range
        return False


def _type_for(value: Any) -> str:
    if isinstance(value, numbers.Integral):
        fitting = [name for name in ("TYPE_INT64", "TYPE_UINT64") if _holds(np.dtype(name[5:].lower()), value)]
        return [*fitting, "TYPE_STRING"][0]
    return "TYPE_FP64" if _holds(np.dtype("float64"), value) else "TYPE_STRING"


def plain(value: Any) -> Any:
    """Values of numpy, pandas and pydantic as JSON has them: the `default` of `json.dumps`."""
    if getattr(value, "dtype", None) is not None and value.dtype.kind in "mM":  # as a list, times are integers
        return value.astype(str).tolist()
    for method in ("isoformat", "tolist", "model_dump"):
        if hasattr(value, method):
            found = getattr(value, method)()
            if type(found) is not type(value):
                return found
    raise TypeError(f"a value of the class {type(value).__name__} has no JSON; return texts or numbers in its place")

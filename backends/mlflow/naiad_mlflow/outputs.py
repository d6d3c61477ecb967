"""A prediction as tensors: tables, series, arrays, dictionaries and lists."""

from __future__ import annotations

import json
from numbers import Number
from typing import Any, Dict, FrozenSet, List, Sequence

import numpy as np
import pandas as pd
from saved_models.conversion import as_array, fitted, plain
from saved_models.settings import ModelSettings, TensorSettings

_SINGLE = (str, bytes, dict, Number, type(None))


class OutputWriter:
    """Finds each output in a prediction: by its name, else as the only one, else by its position."""

    def __init__(self, settings: ModelSettings, optional: FrozenSet[str] = frozenset()) -> None:
        self._tensors = settings.outputs
        self._optional = optional  # names of outputs that predictions may lack
        self._is_batching = settings.max_batch_size > 0

    def write(self, prediction: Any, wanted: Sequence[str]) -> Dict[str, np.ndarray[Any, Any]]:
        """The outputs of these names; ValueError if one that is not optional is missing, or a value does not fit."""
        parts = self._parts(prediction)
        return {
            tensor.name: fitted(_typed(parts[tensor.name], tensor), tensor, is_batching=self._is_batching)
            for tensor in self._tensors
            if tensor.name in wanted and tensor.name in parts
        }

    def _parts(self, prediction: Any) -> Dict[str, Any]:
        if isinstance(prediction, dict) and any(isinstance(value, _SINGLE) for value in prediction.values()):
            prediction = [prediction]  # one row, as of agents, whose lists are values and no columns
        keys = set()
        if _is_rows(prediction):
            keys = {key for row in prediction for key, value in row.items() if value is not None}
        if isinstance(prediction, (dict, pd.DataFrame)):
            keys = set(map(str, prediction))
        absent = self._optional - keys if keys else ()
        names = [tensor.name for tensor in self._tensors if tensor.name not in absent]
        if _is_rows(prediction) and keys & set(names):
            prediction = {name: [row.get(name) for row in prediction] for name in names}
        if isinstance(prediction, pd.DataFrame):
            columns = {str(name): prediction[name] for name in prediction.columns}
            if len(names) > 1 or names[0] in columns or len(columns) == 1:
                return _named(columns, names)
            return {names[0]: prediction.to_numpy()}
        if isinstance(prediction, dict) and (len(names) > 1 or names[0] in prediction or len(prediction) == 1):
            return _named({str(name): value for name, value in prediction.items()}, names)
        if len(names) == 1:
            return {names[0]: [prediction] if isinstance(prediction, (dict, str, bytes)) else prediction}
        if isinstance(prediction, tuple) and len(prediction) == len(names):
            return dict(zip(names, prediction))
        raise ValueError(
            f"the model's prediction is a {type(prediction).__name__}, which has no parts for the outputs "
            f"{', '.join(names)}"
        )


def _is_rows(prediction: Any) -> bool:
    """Whether it is a list with a dictionary for each row."""
    return isinstance(prediction, list) and bool(prediction) and all(isinstance(row, dict) for row in prediction)


def _named(parts: Dict[str, Any], names: Sequence[str]) -> Dict[str, Any]:
    missing = [name for name in names if name not in parts]
    if not missing:
        return parts
    if len(parts) == len(names) and len(missing) == len(names):
        return dict(zip(names, parts.values()))
    raise ValueError(f"the model's prediction has no '{missing[0]}'; it has {', '.join(parts)}")


def _typed(value: Any, tensor: TensorSettings) -> np.ndarray[Any, Any]:
    if tensor.data_type == "TYPE_STRING":
        return _strings(value, tensor.name)
    array = as_array(value)
    missing = pd.isna(array)
    if missing.any() and not tensor.data_type.startswith("TYPE_FP"):
        raise ValueError(
            f"output '{tensor.name}' has a missing value in row {np.argwhere(missing)[0][0]}, which {tensor.data_type} "
            "cannot be; write data_type: TYPE_FP64 for this output in config.pbtxt"
        )
    return np.where(missing, np.nan, array) if array.dtype == object else array


def _strings(value: Any, name: str) -> np.ndarray[Any, Any]:
    items: List[Any]
    shape: Any = None
    if isinstance(value, np.ndarray) and value.dtype.kind in "mM":  # as a list, times are integers
        value = pd.Series(value.ravel()).to_numpy(dtype=object).reshape(value.shape)
    if isinstance(value, (pd.Series, pd.DataFrame)):
        value = value.to_numpy(dtype=object)
    if isinstance(value, np.ndarray):
        shape, items = value.shape, value.ravel().tolist()
    else:
        items = list(value)
    found: np.ndarray[Any, Any] = np.empty(len(items), np.object_)
    found[:] = [_string(item, name, row) for row, item in enumerate(items)]
    return found if shape is None else found.reshape(shape)


def _string(item: Any, name: str, row: int) -> Any:
    if isinstance(item, (str, bytes)):
        return item
    if hasattr(item, "isoformat") and not pd.isna(item):
        return item.isoformat()
    if hasattr(item, "model_dump_json"):  # a model of pydantic, as functions with type hints return them
        return item.model_dump_json()
    if isinstance(item, (dict, list, tuple, np.ndarray)):
        return json.dumps(item, default=plain)
    if item is None or pd.isna(item):
        raise ValueError(f"output '{name}' has a missing value in row {row}, which a string cannot be")
    return str(item)

"""A prediction as tensors: tables, series, arrays, dictionaries and lists."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence

import numpy as np
import pandas as pd
import triton_python_backend_utils as pb_utils
from saved_models.conversion import fitted
from saved_models.settings import ModelSettings, TensorSettings


class OutputWriter:
    """Finds each output in a prediction: by its name, else as the only one, else by its position."""

    def __init__(self, settings: ModelSettings) -> None:
        self._tensors = settings.outputs
        self._is_batching = settings.max_batch_size > 0

    def write(self, prediction: Any, wanted: Sequence[str]) -> Dict[str, np.ndarray[Any, Any]]:
        """The outputs of these names.

        Raises:
            ValueError: If the prediction lacks one, or has values that its type cannot have.
        """
        parts = self._parts(prediction)
        return {
            tensor.name: fitted(_typed(parts[tensor.name], tensor), tensor, is_batching=self._is_batching)
            for tensor in self._tensors
            if tensor.name in wanted
        }

    def _parts(self, prediction: Any) -> Dict[str, Any]:
        names = [tensor.name for tensor in self._tensors]
        if _is_rows(prediction) and any(name in prediction[0] for name in names):
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
    array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    wanted = pb_utils.triton_string_to_numpy(tensor.data_type)
    if np.issubdtype(wanted, np.integer) or wanted is bool:
        rows = np.argwhere(pd.isna(array))
        if len(rows):
            raise ValueError(
                f"output '{tensor.name}' has a missing value in row {rows[0][0]}, which {tensor.data_type} cannot be"
            )
    return array.astype(wanted, copy=False)


def _strings(value: Any, name: str) -> np.ndarray[Any, Any]:
    items: List[Any]
    shape: Any = None
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
    if isinstance(item, (dict, list, tuple)):
        return json.dumps(item, default=_plain)
    if item is None or pd.isna(item):
        raise ValueError(f"output '{name}' has a missing value in row {row}, which a string cannot be")
    return str(item)


def _plain(value: Any) -> Any:
    """Values of numpy and pandas as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)

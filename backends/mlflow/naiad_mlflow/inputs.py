"""The tensors of requests as what `predict` takes."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List

import numpy as np
import pandas as pd
from saved_models.execution import Arrays
from saved_models.settings import ModelSettings

from naiad_mlflow.signature import Column, Form, Signature

_TABLE = "as_table"


class InputReader:
    """Makes the argument of `predict`.

    Without a signature, several inputs are the columns of a table, and one input is an array, or a table of one column
    where the parameter `as_table` says so.
    """

    def __init__(self, settings: ModelSettings, signature: Signature) -> None:
        self._columns: Dict[str, Column] = {}
        form = signature.form
        if form is None:
            is_table = len(settings.inputs) > 1 or settings.flag(_TABLE, default=False)
            form = Form.TABLE if is_table else Form.ARRAY
            self._columns = {
                tensor.name: Column(tensor.name, "string", tensor.data_type, (), is_required=True, described="")
                for tensor in settings.inputs
            }
        elif len(signature.inputs) == 1 and settings.inputs:
            # One input without a name has any name in the configuration.
            self._columns = {settings.inputs[0].name: signature.inputs[0]}
        else:
            self._columns = {column.name: column for column in signature.inputs}
        self._read = _READERS[form]

    def read(self, arrays: Arrays) -> Any:
        """The argument of `predict`.

        Raises:
            ValueError: If a value does not have the form of its column.
        """
        return self._read({name: column for name, column in self._columns.items() if name in arrays}, arrays)


def _array(columns: Dict[str, Column], arrays: Arrays) -> Any:
    (name,) = columns
    return _texts(name, arrays[name])


def _arrays(columns: Dict[str, Column], arrays: Arrays) -> Any:
    return {name: _texts(name, arrays[name]) for name in columns}


def _table(columns: Dict[str, Column], arrays: Arrays) -> Any:
    return pd.DataFrame({name: _values(name, column, arrays[name]) for name, column in columns.items()})


def _matrix(columns: Dict[str, Column], arrays: Arrays) -> Any:
    if len(columns) > 1:
        return pd.DataFrame(
            {number: _values(name, column, arrays[name]) for number, (name, column) in enumerate(columns.items())}
        )
    ((name, column),) = columns.items()
    array = arrays[name]
    array = array.reshape(len(array), -1)
    return pd.DataFrame({number: _values(name, column, array[:, number]) for number in range(array.shape[1])})


def _list(columns: Dict[str, Column], arrays: Arrays) -> Any:
    ((name, column),) = columns.items()
    return _plain(_values(name, column, arrays[name]))


def _records(columns: Dict[str, Column], arrays: Arrays) -> Any:
    lists = {name: _plain(_values(name, column, arrays[name])) for name, column in columns.items()}
    return [dict(zip(lists, row)) for row in zip(*lists.values())]


_READERS: Dict[Form, Callable[[Dict[str, Column], Arrays], Any]] = {
    Form.ARRAY: _array,
    Form.ARRAYS: _arrays,
    Form.TABLE: _table,
    Form.MATRIX: _matrix,
    Form.LIST: _list,
    Form.RECORDS: _records,
}


def _plain(values: Any) -> List[Any]:
    return values if isinstance(values, list) else list(values.tolist())


def _texts(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array whose bytes are texts."""
    if array.dtype != object:
        return array
    found: np.ndarray[Any, Any] = np.empty(array.shape, np.object_)
    found.ravel()[:] = [_text(name, item) for item in array.ravel().tolist()]
    return found


def _values(name: str, column: Column, array: np.ndarray[Any, Any]) -> Any:
    """The values of a column: one for each row."""
    flat = array.reshape(len(array), -1)
    if flat.shape[1] != 1:
        raise ValueError(f"input '{name}' is a column, and has {flat.shape[1]} values for each row instead of one")
    values = flat[:, 0]
    if values.dtype != object or column.kind == "binary":
        return values
    texts = [_text(name, item) for item in values.tolist()]
    if column.kind == "datetime":
        return _times(name, texts)
    return [_json(name, text) for text in texts] if column.kind == "json" else texts


def _text(name: str, item: Any) -> str:
    if isinstance(item, str):
        return item
    try:
        return str(item.decode())
    except UnicodeDecodeError as problem:
        raise ValueError(f"input '{name}' has a string that is not UTF-8: {problem}") from None


def _times(name: str, texts: List[str]) -> Any:
    """Times without zones, which columns have; those with one become UTC."""
    try:
        times = [pd.Timestamp(text) for text in texts]
    except ValueError as problem:
        raise ValueError(
            f"input '{name}' has a value that is no time: {problem}; write it as 2024-05-31T12:00:00"
        ) from None
    plain = [time if time.tzinfo is None else time.tz_convert("UTC").tz_localize(None) for time in times]
    return np.array([time.to_datetime64() for time in plain], "datetime64[ns]")


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as problem:
        raise ValueError(f"input '{name}' has a string that is not JSON: {problem}") from None

"""The tensors of requests as what `predict` takes."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, List

import numpy as np
import pandas as pd
from saved_models.conversion import InputError, row_values, strings
from saved_models.execution import Arrays
from saved_models.settings import ModelSettings

from naiad_mlflow.signature import Column, Form, Signature

_TABLE = "as_table"
_DATE = re.compile(r"\s*\d{4}[-/]?\d")


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
        """The argument of `predict`; InputError if a value does not have the form of its column."""
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
    return values if isinstance(values, list) else list(pd.Index(values).tolist())  # numpy has times as integers


def _texts(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array whose bytes are texts."""
    return strings(name, array) if array.dtype == object else array


def _values(name: str, column: Column, array: np.ndarray[Any, Any]) -> Any:
    values = row_values(name, array)
    if values.dtype != object or column.kind == "binary":
        return values
    texts = strings(name, values).tolist()
    if column.kind == "datetime":
        return _times(name, texts)
    return [read_json(f"input '{name}'", text) for text in texts] if column.kind == "json" else texts


def _times(name: str, texts: List[str]) -> Any:
    times = [read_time(f"input '{name}'", text) for text in texts]
    for time, text in zip(times, texts):
        if not pd.Timestamp.min <= time <= pd.Timestamp.max:
            raise InputError(
                f"input '{name}' has the time '{text}', and columns of pandas have those from {pd.Timestamp.min} to "
                f"{pd.Timestamp.max}"
            )
    return np.array([time.to_datetime64() for time in times], "datetime64[ns]")


def read_time(where: str, text: Any) -> Any:
    """A time without a zone, which columns have; one with a zone becomes UTC. InputError for words such as `now`."""
    try:
        if not _DATE.match(text):
            raise ValueError(f"'{text}' does not begin with a year and a month")
        time = pd.Timestamp(text)
        return time if time.tzinfo is None else time.tz_convert("UTC").tz_localize(None)
    except (TypeError, ValueError) as problem:
        raise InputError(f"{where} has a value that is no time: {problem}; write it as 2024-05-31T12:00:00") from None


def read_json(where: str, text: str) -> Any:
    """The value in a text; InputError if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError as problem:
        raise InputError(f"{where} has a string that is not JSON: {problem}") from None

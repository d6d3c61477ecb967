"""The tensors of requests as what `predict` takes."""

from __future__ import annotations

import json
import re
from typing import Any, List

import numpy as np
import pandas as pd
from saved_models.conversion import InputError, row_values, strings
from saved_models.execution import Arrays
from saved_models.settings import ModelSettings

from naiad_mlflow.signature import Form, Signature

_TABLE = "as_table"
_DATE = re.compile(r"\s*\d{4}[-/]?\d")


class InputReader:
    """Makes the argument of `predict`.

    Without a signature, several inputs are the columns of a table, and one input is an array, or a table of one column
    where the parameter `as_table` says so.
    """

    def __init__(self, settings: ModelSettings, signature: Signature) -> None:
        form = signature.form
        self._kinds = {column.tensor.name: column.kind for column in signature.inputs}
        if form is None:
            is_table = len(settings.inputs) > 1 or settings.flag(_TABLE, default=False)
            form = Form.TABLE if is_table else Form.ARRAY
            self._kinds = {tensor.name: "string" for tensor in settings.inputs}
        elif len(signature.inputs) == 1 and settings.inputs:
            # One input without a name has any name in the configuration.
            self._kinds = {settings.inputs[0].name: signature.inputs[0].kind}
        self._form = form

    def read(self, arrays: Arrays) -> Any:
        """The argument of `predict`; InputError if a value does not have the form of its column."""
        kinds = {name: kind for name, kind in self._kinds.items() if name in arrays}
        if self._form in (Form.ARRAY, Form.ARRAYS):
            texts = {name: _texts(name, arrays[name]) for name in kinds}
            return texts if self._form is Form.ARRAYS else texts.popitem()[1]
        if self._form is Form.MATRIX and len(kinds) == 1:
            ((name, kind),) = kinds.items()
            array = arrays[name].reshape(len(arrays[name]), -1)
            return pd.DataFrame({number: _values(name, kind, array[:, number]) for number in range(array.shape[1])})
        columns = {name: _values(name, kind, arrays[name]) for name, kind in kinds.items()}
        if self._form is Form.TABLE:
            return pd.DataFrame(columns)
        if self._form is Form.MATRIX:
            return pd.DataFrame(dict(enumerate(columns.values())))
        lists = {name: _plain(values) for name, values in columns.items()}
        if self._form is Form.LIST:
            return lists.popitem()[1]
        return [dict(zip(lists, row)) for row in zip(*lists.values())]


def _plain(values: Any) -> List[Any]:
    return values if isinstance(values, list) else list(pd.Index(values).tolist())  # numpy has times as integers


def _texts(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array whose bytes are texts."""
    return strings(name, array) if array.dtype == object else array


def _values(name: str, kind: str, array: np.ndarray[Any, Any]) -> Any:
    values = row_values(name, array)
    if values.dtype != object or kind == "binary":
        return values
    texts = strings(name, values).tolist()
    if kind == "datetime":
        return _times(name, texts)
    return [read_json(f"input '{name}'", text) for text in texts] if kind == "json" else texts


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

"""Calls `predict` for a batch, with the parameters of its requests."""

from __future__ import annotations

import json
from typing import Any, Dict, Hashable, Mapping, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils
from saved_models.execution import Arrays

from naiad_mlflow.inputs import InputReader
from naiad_mlflow.outputs import OutputWriter
from naiad_mlflow.signature import Parameter


class Predictor:
    """A loaded model, with the conversions of its inputs and outputs."""

    def __init__(
        self, model: Any, reader: InputReader, writer: OutputWriter, parameters: Mapping[str, Parameter]
    ) -> None:
        self._model = model
        self._reader = reader
        self._writer = writer
        self._parameters = parameters

    def arguments(self, request: Any) -> Tuple[Hashable, ...]:
        """The parameters of a request that the signature has, as JSON. Others are the server's, or are ignored."""
        if not self._parameters:
            return ()
        given = json.loads(request.parameters() or "{}")
        known = {name: given[name] for name in self._parameters if name in given}
        return (json.dumps(known),) if known else ()

    def run(self, arrays: Arrays, wanted: Sequence[str], parameters: str = "") -> Dict[str, np.ndarray[Any, Any]]:
        """The outputs of these names for a batch.

        Raises:
            TritonModelException: If MLflow refuses the inputs or parameters, or the model fails.
            ValueError: If a tensor cannot be what the model takes or gives.
        """
        given = self._reader.read(arrays)
        try:
            if parameters:
                prediction = self._model.predict(given, params=self._values(json.loads(parameters)))
            else:
                prediction = self._model.predict(given)
        except ValueError:
            raise
        except Exception as problem:
            kind = "" if type(problem).__name__ == "MlflowException" else f"{type(problem).__name__}: "
            raise pb_utils.TritonModelException(f"{kind}{problem}") from problem
        return self._writer.write(prediction, wanted)

    def _values(self, given: Dict[str, Any]) -> Dict[str, Any]:
        return {name: _value(self._parameters[name], value) for name, value in given.items()}


def _value(parameter: Parameter, value: Any) -> Any:
    """A value as MLflow takes it: parameters of requests are texts, numbers or truth values, and lists are JSON."""
    if isinstance(value, str) and (parameter.is_list or parameter.kind == "json"):
        try:
            return json.loads(value)
        except ValueError as problem:
            raise ValueError(f"the parameter '{parameter.name}' is not JSON: {problem}") from None
    if isinstance(value, str) and parameter.kind == "datetime":
        return np.datetime64(value)
    if parameter.kind in {"float", "double"} and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value

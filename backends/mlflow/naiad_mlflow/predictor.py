"""Calls `predict` for a batch, with the parameters of its requests."""

from __future__ import annotations

import json
from typing import Any, Dict, Hashable, Mapping, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils
from saved_models.conversion import InputError
from saved_models.execution import Arrays

from naiad_mlflow.inputs import InputReader, read_json, read_time
from naiad_mlflow.outputs import OutputWriter
from naiad_mlflow.signature import PREFIX, Parameter

_REFUSED = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST"})  # codes of MLflow's errors about values


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
        given = json.loads(request.parameters())
        known = {name: given[key] for name in self._parameters for key in (name, PREFIX + name) if key in given}
        return (json.dumps(known),) if known else ()

    def run(self, arrays: Arrays, wanted: Sequence[str], parameters: str = "") -> Dict[str, np.ndarray[Any, Any]]:
        """The outputs of these names for a batch; InputError if MLflow, the model or its library refuses the inputs."""
        given = self._reader.read(arrays)
        named = json.loads(parameters or "{}").items()
        values = {name: _value(self._parameters[name], value) for name, value in named}
        try:
            prediction = self._model.predict(given, **({"params": values} if values else {}))
        except ValueError as problem:  # of libraries: values that they do not take
            raise InputError(str(problem)) from problem
        except Exception as problem:
            if getattr(problem, "error_code", "") in _REFUSED:
                raise InputError(str(problem)) from problem
            kind = "" if type(problem).__name__ == "MlflowException" else f"{type(problem).__name__}: "
            raise pb_utils.TritonModelException(f"{kind}{problem}") from problem
        return self._writer.write(prediction, wanted)


def _value(parameter: Parameter, value: Any) -> Any:
    """A value as MLflow takes it: parameters of requests are texts, numbers or truth values, and lists are JSON."""
    where = f"the parameter '{parameter.name}'"
    if isinstance(value, str) and (parameter.is_list or parameter.kind == "json"):
        value = read_json(where, value)
    if parameter.kind == "datetime":
        # MLflow takes no nanoseconds here: the text tells the unit.
        texts = value if isinstance(value, list) else [value]
        times = [np.datetime64(read_time(where, text).isoformat()) for text in texts]
        return times if parameter.is_list else times[0]
    if parameter.kind in {"float", "double"} and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value

"""Executes the requests of a batch as one call of a library."""

from __future__ import annotations

import traceback
from itertools import accumulate
from typing import Any, Callable, Dict, Hashable, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from saved_models.conversion import InputError
from saved_models.ragged import RaggedBatches
from saved_models.settings import ModelSettings

Arrays = Dict[str, "np.ndarray[Any, Any]"]
# Computes outputs from inputs (arrays by name; numbers are views of the requests' memory), the names of outputs, and
# what `arguments` gives. The response lacks outputs that it leaves out.
Run = Callable[..., Mapping[str, Any]]


class NumpyArrays:
    """Tensors of requests as arrays of numpy. A library with arrays of its own has a class with the same methods."""

    def read(self, tensor: Any) -> Any:
        return tensor.as_numpy()

    def join(self, arrays: Sequence[Any]) -> Any:
        return np.concatenate(arrays)

    def take(self, array: np.ndarray[Any, Any]) -> Any:
        """An array of numpy that describes a batch, as an input of the library."""
        return array

    def write(self, name: str, array: Any) -> Any:
        return pb_utils.Tensor(name, array)


class BatchRunner:
    """Runs requests. Those of one call are joined along their first dimension, and the outputs are divided again.

    Where the joined requests fail, each is executed alone: a request must not fail because of another one's data.
    """

    def __init__(
        self,
        settings: ModelSettings,
        run: Run,
        arrays: Any = None,  # reads, joins and writes tensors as the library's arrays; None for those of numpy
        *,
        # Further arguments of *run* for a request; requests are joined where they are equal.
        arguments: Callable[[Any], Tuple[Hashable, ...]] = lambda _: (),
        ragged: Optional[RaggedBatches] = None,  # None for a backend that makes none
        is_joining: bool = True,  # whether the library computes several rows at once
    ) -> None:
        self._is_joining = is_joining
        self._run = run
        self._arrays = NumpyArrays() if arrays is None else arrays
        self._arguments = arguments
        self._ragged = ragged if ragged is not None and ragged.is_used else None
        self._is_batching = settings.max_batch_size > 0
        self._states = frozenset(settings.states)
        self._outputs = tuple(tensor.name for tensor in settings.outputs)

    def execute(self, requests: Sequence[Any]) -> List[Any]:
        if len(requests) == 1:
            return [self._execute_alone(requests[0])]
        if not self._is_batching or not self._is_joining:
            return [self._execute_alone(request) for request in requests]
        responses: List[Any] = [None] * len(requests)
        for indices in self._alike(requests):
            together = [requests[index] for index in indices]
            for index, response in zip(indices, self._execute_together(together)):
                responses[index] = response
        return responses

    def _execute_alone(self, request: Any) -> Any:
        try:
            return self._call([request])[0]
        except Exception as error:  # noqa: BLE001 - whatever the library raises is the request's error
            return _failed(error)

    def _execute_together(self, requests: Sequence[Any]) -> List[Any]:
        if len(requests) == 1:
            return [self._execute_alone(requests[0])]
        try:
            return self._call(requests)
        except Exception:  # noqa: BLE001 - found out again below, for each request by itself
            return [self._execute_alone(request) for request in requests]

    def _call(self, requests: Sequence[Any]) -> List[Any]:
        """The responses of requests that are one call of the library, which gets ragged inputs as one dimension."""
        inputs = [self._read(request) for request in requests]
        ragged, is_one = self._ragged, len(requests) == 1
        rows = [_rows_of(arrays) for arrays in inputs] if self._is_batching else [1]
        shapes: List[Dict[str, Tuple[int, ...]]] = []
        joined = inputs[0]
        if ragged is not None:
            shapes = [{name: tuple(array.shape) for name, array in arrays.items()} for arrays in inputs]
            inputs = [{name: ragged.flat(name, array) for name, array in arrays.items()} for arrays in inputs]
        if ragged is not None or not is_one:
            joined = {name: self._arrays.join([arrays[name] for arrays in inputs]) for name in joined}
        if ragged is not None:
            joined.update({name: self._arrays.take(array) for name, array in ragged.batch_inputs(shapes).items()})
        wanted = self._wanted(requests)
        found = self._run(joined, wanted, *self._arguments(requests[0]))
        parts: Dict[str, List[Any]] = {}
        for name in filter(found.__contains__, wanted):
            if ragged is not None and ragged.is_scattered(name):
                parts[name] = ragged.scatter(name, found[name], shapes)
                continue
            if self._is_batching:
                _check_rows(name, found[name], sum(rows))
            parts[name] = [found[name]]
            if not is_one:
                parts[name] = [found[name][end - count : end] for count, end in zip(rows, accumulate(rows))]
        return [
            self._respond({name: part[index] for name, part in parts.items()}, self._wanted([request]))
            for index, request in enumerate(requests)
        ]

    def _read(self, request: Any) -> Dict[str, Any]:
        read = self._arrays.read
        return {tensor.name(): read(tensor) for tensor in request.inputs()}

    def _respond(self, found: Mapping[str, Any], names: Sequence[str]) -> Any:
        write = self._arrays.write
        return pb_utils.InferenceResponse([write(name, found[name]) for name in names if name in found])

    def _wanted(self, requests: Iterable[Any]) -> Tuple[str, ...]:
        """The states, and the outputs that any of the requests asks for, in the configuration's order."""
        asked = self._states.union(*(request.requested_output_names() for request in requests))
        return tuple(name for name in self._outputs if name in asked)

    def _alike(self, requests: Sequence[Any]) -> List[List[int]]:
        """The positions of the requests whose inputs can be joined, together."""
        ragged = frozenset() if self._ragged is None else self._ragged.inputs
        groups: Dict[Hashable, List[int]] = {}
        for index, request in enumerate(requests):
            tensors = sorted(
                (tensor.name(), tensor.triton_dtype(), *(() if tensor.name() in ragged else tensor.shape()[1:]))
                for tensor in request.inputs()
            )
            groups.setdefault((tuple(tensors), self._arguments(request)), []).append(index)
        return list(groups.values())


class SavedModelBackend:
    """What the server calls for each model of a backend for saved models: its `initialize` makes the runner."""

    _runner: BatchRunner

    def execute(self, requests: List[Any]) -> List[Any]:
        return self._runner.execute(requests)


def _rows_of(arrays: Mapping[str, Any]) -> int:
    rows = {array.shape[0] for array in arrays.values()}
    if len(rows) != 1:
        raise InputError("inputs differ in their first dimension")
    return rows.pop()


def _check_rows(name: str, array: Any, rows: int) -> None:
    """Refuse an output that is not one row for each of the inputs: nobody knew whose they are."""
    if array.shape[:1] != (rows,):
        raise ValueError(f"output '{name}' has shape {list(array.shape)} for a batch of {rows} rows")


def _failed(error: Exception) -> Any:
    """The response for an exception of the library, or of the checks here."""
    if isinstance(error, (pb_utils.TritonModelException, ValueError, TypeError)):
        text = str(error)
    else:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
    code = pb_utils.TritonError.INVALID_ARG if isinstance(error, InputError) else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))

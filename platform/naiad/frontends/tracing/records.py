"""Traces as JSON records for files: Triton's own mode (SRV docs/user_guide/trace.md, "JSON Trace Output")."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

from naiad.errors import NaiadError
from naiad.frontends.tracing.request_trace import ComputeTimes
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InferResponse

_ids = count(1)


class _TraceTree:
    """The records of a client's request and of all requests it causes; complete once the last of them has ended."""

    def __init__(self, levels: tuple[str, ...], on_complete: Callable[[list[dict[str, Any]]], None]) -> None:
        self.with_times = "TIMESTAMPS" in levels
        self.with_tensors = "TENSORS" in levels
        self._on_complete = on_complete
        self._open = 0
        self._records: list[list[dict[str, Any]]] = []

    def add(self, records: list[dict[str, Any]]) -> None:
        self._open += 1
        self._records.append(records)

    def close_one(self) -> None:
        self._open -= 1
        if not self._open:
            self._on_complete([record for records in self._records for record in records])


class JsonRecorder:
    """Stores events as JSON records, each with the id of its request's trace."""

    __slots__ = ("_has_header", "_id", "_parent", "_records", "_request", "_tree")

    def __init__(self, request: InferRequest, tree: _TraceTree, parent: int = 0) -> None:
        self._request = request
        self._tree = tree
        self._id = next(_ids)
        self._parent = parent
        self._records: list[dict[str, Any]] = []
        self._has_header = False
        tree.add(self._records)

    @classmethod
    def root(
        cls, request: InferRequest, levels: tuple[str, ...], on_complete: Callable[[list[dict[str, Any]]], None]
    ) -> JsonRecorder:
        """The recorder of a client's request; *on_complete* receives the records of the tree when all have ended."""
        return cls(request, _TraceTree(levels, on_complete))

    @property
    def context(self) -> bytes:
        """Empty: there are no spans that a model could add its own to."""
        return b""

    def record(self, name: str, when: int) -> None:
        """Record an event in the server."""
        if self._tree.with_times:
            self._records.append({"id": self._id, "timestamps": [{"name": name, "ns": when}]})

    def record_transport(self, name: str, when: int) -> None:
        """Record an event on the client's connection."""
        self.record(name, when)

    def record_compute(self, times: ComputeTimes) -> None:
        """Record the execution by a model."""
        self.record("COMPUTE_START", times.start)
        self.record("COMPUTE_INPUT_END", times.input_end)
        self.record("COMPUTE_OUTPUT_START", times.output_start)
        self.record("COMPUTE_END", times.end)

    def begin(self) -> None:
        """Record the start of the request, and its inputs at the level TENSORS."""
        self.record("REQUEST_START", time.monotonic_ns())
        if self._tree.with_tensors:
            for tensor in self._request.inputs:
                self._record_tensor("TENSOR_QUEUE_INPUT", tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def record_response(self, response: InferResponse) -> None:
        """Record a response: its model version, and its outputs at the level TENSORS."""
        self._insert_header(response.model_version)
        if self._tree.with_tensors:
            for tensor in response.outputs:
                self._record_tensor("TENSOR_BACKEND_OUTPUT", tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def end_request(self, error: NaiadError | None) -> None:  # noqa: ARG002 - the format has no errors
        """Record the end of the request."""
        self._insert_header(self._request.model_version)
        self.record("REQUEST_END", time.monotonic_ns())

    def close(self) -> None:
        """Finish the record: nothing follows."""
        self._tree.close_one()

    def create_child(self, request: InferRequest) -> JsonRecorder:
        """A recorder for a request that this one causes."""
        return JsonRecorder(request, self._tree, self._id)

    def _insert_header(self, version: int) -> None:
        """Insert the record with the model's name and version, which is known with the first response only."""
        if self._has_header:
            return
        self._has_header = True
        header = {"id": self._id, "model_name": self._request.model_name, "model_version": version}
        if self._request.request_id:
            header["request_id"] = self._request.request_id
        if self._parent:
            header["parent_id"] = self._parent
        self._records.insert(0, header)

    def _record_tensor(
        self, activity: str, name: str, datatype: Datatype, shape: tuple[int, ...], data: Buffer
    ) -> None:
        tensor = {
            "name": name,
            "data": _elements(datatype, data),
            "shape": ",".join(map(str, shape)),
            "dtype": datatype.name,
        }
        self._records.append({"id": self._id, "activity": activity, "tensor": tensor})


def _elements(datatype: Datatype, data: Buffer) -> str:
    if datatype is Datatype.BYTES:
        return ",".join(f'"{element.decode("utf-8", "replace")}"' for element in _strings(data))
    import numpy as np  # imported late: see `protocol.numpy_types`

    numpy_type = datatype.numpy
    if numpy_type is None or datatype in {Datatype.FP16, Datatype.BF16}:
        return ""  # the reference writes no elements of these types
    return ",".join(f"{element:g}" for element in np.frombuffer(data, numpy_type).tolist())


def _strings(data: Buffer) -> list[bytes]:
    found, position = [], 0
    while position + 4 <= len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "little")
        found.append(bytes(data[position + 4 : end]))
        position = end
    return found

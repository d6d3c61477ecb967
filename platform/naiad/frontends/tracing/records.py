"""Traces as records for files: the reference's own mode (SRV docs/user_guide/trace.md, "JSON Trace Output")."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

from naiad.errors import NaiadError
from naiad.frontends.tracing.request_trace import Computation, RequestTrace
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InferResponse

_ids = count(1)


class _Tree:
    """A client's request and those it led to; taken away whole once the last of them has ended."""

    def __init__(self, levels: tuple[str, ...], take: Callable[[list[dict[str, Any]]], None]) -> None:
        self.with_times = "TIMESTAMPS" in levels
        self.with_tensors = "TENSORS" in levels
        self._take = take
        self._open = 0
        self._records: list[list[dict[str, Any]]] = []

    def add(self, records: list[dict[str, Any]]) -> None:
        self._open += 1
        self._records.append(records)

    def ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._take([record for records in self._records for record in records])


class RecordedTrace(RequestTrace):
    """Notes as records, each with the number of its trace."""

    __slots__ = ("_has_name", "_id", "_parent", "_records", "_tree")

    def __init__(self, request: InferRequest, tree: _Tree, parent: int = 0) -> None:
        super().__init__(request)
        self._tree = tree
        self._id = next(_ids)
        self._parent = parent
        self._records: list[dict[str, Any]] = []
        self._has_name = False
        tree.add(self._records)

    @classmethod
    def root(
        cls, request: InferRequest, levels: tuple[str, ...], take: Callable[[list[dict[str, Any]]], None]
    ) -> RecordedTrace:
        """The trace of a client's request; *take* gets its records and those of its children once all have ended."""
        return cls(request, _Tree(levels, take))

    @property
    def context(self) -> bytes:
        """Nothing: there are no spans that a model's own could belong to."""
        return b""

    def note(self, name: str, when: int) -> None:
        """Note what happened to the request in the server."""
        if self._tree.with_times:
            self._records.append({"id": self._id, "timestamps": [{"name": name, "ns": when}]})

    def note_transport(self, name: str, when: int) -> None:
        """Note what happened on the client's connection."""
        self.note(name, when)

    def note_computation(self, times: Computation) -> None:
        """Note how a model worked on it."""
        self.note("COMPUTE_START", times.start)
        self.note("COMPUTE_INPUT_END", times.input_end)
        self.note("COMPUTE_OUTPUT_START", times.output_start)
        self.note("COMPUTE_END", times.end)

    def begin(self) -> None:
        """Note what is asked."""
        self.note("REQUEST_START", time.monotonic_ns())
        if self._tree.with_tensors:
            for tensor in self.request.inputs:
                self._note_tensor("TENSOR_QUEUE_INPUT", tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def answered(self, response: InferResponse) -> None:
        """Note a response."""
        self._name(response.model_version)
        if self._tree.with_tensors:
            for tensor in response.outputs:
                self._note_tensor("TENSOR_BACKEND_OUTPUT", tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def end_request(self, error: NaiadError | None) -> None:  # noqa: ARG002 - files have no place for it
        """The request has its last response."""
        self._name(self.request.model_version)
        self.note("REQUEST_END", time.monotonic_ns())

    def end(self) -> None:
        """Nothing more will be noted of this request."""
        self._tree.ended()

    def child_of(self, request: InferRequest) -> RecordedTrace:
        """Make the trace of a request that this one leads to."""
        return RecordedTrace(request, self._tree, self._id)

    def _name(self, version: int) -> None:
        """Say what the trace is of, which is known with the first response: the version, if the client named none."""
        if self._has_name:
            return
        self._has_name = True
        named = {"id": self._id, "model_name": self.request.model_name, "model_version": version}
        if self.request.request_id:
            named["request_id"] = self.request.request_id
        if self._parent:
            named["parent_id"] = self._parent
        self._records.insert(0, named)

    def _note_tensor(self, activity: str, name: str, datatype: Datatype, shape: tuple[int, ...], data: Buffer) -> None:
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
    import numpy as np  # here: see `protocol.numpy_types`

    numpy_type = datatype.numpy
    if numpy_type is None or datatype in {Datatype.FP16, Datatype.BF16}:
        return ""  # as in the reference
    return ",".join(f"{element:g}" for element in np.frombuffer(data, numpy_type).tolist())


def _strings(data: Buffer) -> list[bytes]:
    found, position = [], 0
    while position + 4 <= len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "little")
        found.append(bytes(data[position + 4 : end]))
        position = end
    return found

"""Traces as JSON records for files: Triton's own mode (SRV docs/user_guide/trace.md, "JSON Trace Output").

The event loop records; `rendering` makes text of the records later, on the thread that writes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeAlias

from naiad.core.errors import NaiadError
from naiad.frontends.tracing.request_trace import ComputeTimes
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, InputTensor

_ids = count(1)
_RECORD_SIZE = 512  # what a record takes besides a tensor's bytes, about
TENSORS_SIZE = 8 << 20  # of one request's trace: they are copied on the event loop, at 0.4 ms for each MiB
_TRACE_SIZE = 16 << 20  # bytes of a whole trace: the request may have any number of responses, each with its records


@dataclass(slots=True)
class TensorRecord:
    """A tensor of a request or response."""

    trace: int
    activity: str
    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: bytes  # a copy of its elements; empty if it did not fit


Record: TypeAlias = dict[str, Any] | TensorRecord


@dataclass(slots=True)
class CompleteTrace:
    """The records of a client's request and of all requests that it caused."""

    records: list[Record]
    size: int  # bytes that they take, about


class TraceOutput(Protocol):
    """Where traces go."""

    def write(self, trace: CompleteTrace) -> None:
        """Take a trace whose requests have all ended."""

    def on_omitted(self, tensor: str) -> None:
        """A tensor is traced without its elements: the trace has no room for them."""

    def on_dropped(self) -> None:
        """A trace is too long to be kept."""


class _TraceTree:
    """The records of a client's request and of all requests it causes; complete once the last of them has ended.

    A tree that becomes too long is dropped as a whole.
    """

    def __init__(self, levels: tuple[str, ...], output: TraceOutput) -> None:
        self.with_times = "TIMESTAMPS" in levels
        self.with_tensors = "TENSORS" in levels
        self._output = output
        self._size = 0
        self._tensors_left = TENSORS_SIZE
        self._open = 0
        self._is_dropped = False
        self._records: list[list[Record]] = []

    def open_one(self, records: list[Record]) -> None:
        self._open += 1
        self._records.append(records)

    def close_one(self) -> None:
        self._open -= 1
        if not self._open and not self._is_dropped:
            self._output.write(CompleteTrace([record for records in self._records for record in records], self._size))

    def has_room(self) -> bool:
        """Count one record; whether it may be stored."""
        return self._take(_RECORD_SIZE)

    def copy(self, name: str, data: Buffer) -> bytes | None:
        """The bytes of a tensor: empty if the trace has no room for them, None if its record may not be stored."""
        size = len(data)
        if size > self._tensors_left:
            self._output.on_omitted(name)
            size = 0
        if not self._take(_RECORD_SIZE + size):
            return None
        self._tensors_left -= size
        # Both the memory of a body and a guest's are used for others once the request has ended.
        return bytes(data[:size])

    def _take(self, size: int) -> bool:
        if self._is_dropped:
            return False
        self._size += size
        if self._size > _TRACE_SIZE:
            self._is_dropped = True
            for records in self._records:
                records.clear()
            self._output.on_dropped()
        return not self._is_dropped


class JsonRecorder:
    """Stores events as JSON records, each with the id of its request's trace."""

    __slots__ = ("_has_header", "_id", "_inputs", "_model", "_parent", "_records", "_request_id", "_tree")

    def __init__(self, request: InferRequest, tree: _TraceTree, parent: int = 0) -> None:
        # Not the request, which refers to its trace: a cycle would keep its tensors until the collector runs.
        self._model = request.model_name, request.model_version
        self._request_id = request.request_id
        self._inputs: Sequence[InputTensor] = request.inputs  # until they are recorded
        self._tree = tree
        self._id = next(_ids)
        self._parent = parent
        self._records: list[Record] = []
        self._has_header = False
        tree.open_one(self._records)

    @classmethod
    def root(cls, request: InferRequest, levels: tuple[str, ...], output: TraceOutput) -> JsonRecorder:
        """The recorder of a client's request; *output* gets the records when all that it caused has ended."""
        return cls(request, _TraceTree(levels, output))

    @property
    def context(self) -> bytes:
        """Empty: the trace has no spans to which a model could add others."""
        return b""

    def record(self, name: str, when: int) -> None:
        if self._tree.with_times and self._tree.has_room():
            self._records.append({"id": self._id, "timestamps": [{"name": name, "ns": when}]})

    def record_transport(self, name: str, when: int) -> None:
        self.record(name, when)

    def record_compute(self, times: ComputeTimes) -> None:
        for name, when in times.events():
            self.record(name, when)

    def begin(self) -> None:
        """Record the start of the request, and its inputs at the level TENSORS."""
        self.record("REQUEST_START", time.monotonic_ns())
        if self._tree.with_tensors:
            for tensor in self._inputs:
                self._record_tensor("TENSOR_QUEUE_INPUT", tensor.name, tensor.datatype, tensor.shape, tensor.data)
        self._inputs = ()

    def record_response(self, response: InferResponse) -> None:
        """Record a response: its model version, and its outputs at the level TENSORS."""
        self._insert_header(response.model_version)
        if self._tree.with_tensors:
            for tensor in response.outputs:
                self._record_tensor("TENSOR_BACKEND_OUTPUT", tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def end_request(self, error: NaiadError | None) -> None:  # noqa: ARG002 - the format has no errors
        self._insert_header(self._model[1])
        self.record("REQUEST_END", time.monotonic_ns())

    def close(self) -> None:
        self._tree.close_one()

    def create_child(self, request: InferRequest) -> JsonRecorder:
        return JsonRecorder(request, self._tree, self._id)

    def _insert_header(self, version: int) -> None:
        """Insert the record with the model's name and version, which is known with the first response only."""
        if self._has_header or not self._tree.has_room():
            return
        self._has_header = True
        header = {"id": self._id, "model_name": self._model[0], "model_version": version}
        if self._request_id:
            header["request_id"] = self._request_id
        if self._parent:
            header["parent_id"] = self._parent
        self._records.insert(0, header)

    def _record_tensor(
        self, activity: str, name: str, datatype: Datatype, shape: tuple[int, ...], data: Buffer
    ) -> None:
        found: object = data
        if not isinstance(found, (bytes, bytearray, memoryview)):
            return  # it is in GPU memory, which the server cannot read
        copied = self._tree.copy(name, data)
        if copied is not None:
            self._records.append(TensorRecord(self._id, activity, name, datatype, shape, copied))

"""Traces of requests: which are traced, what is noted of them, and settings that change while the server runs.

Rules and texts: SRV src/tracer.cc. A request that is not traced costs the look at `Tracer.is_on`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from naiad.config.trace_options import TraceOptions
from naiad.errors import InvalidRequestError
from naiad.frontends.trace_files import TraceFile
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, Sink

_ids = count(1)


class _Setting:
    """One effective setting and what was sampled under it."""

    def __init__(self, options: TraceOptions, file: TraceFile) -> None:
        self.options = options
        self.left = options.count
        self._file = file
        self._seen = 0
        self._batch: list[list[dict[str, Any]]] = []

    def is_on(self) -> bool:
        options = self.options
        return bool(options.levels and options.rate and options.file) and self.left != 0

    def samples(self) -> bool:
        """Whether the next request is traced."""
        if not self.is_on():
            return False
        self._seen += 1
        if self._seen % self.options.rate:
            return False
        self.left -= self.left > 0
        return True

    def take(self, events: list[dict[str, Any]]) -> None:
        if not self.options.log_frequency:
            self._file.add(events)
            return
        self._batch.append(events)
        if len(self._batch) >= self.options.log_frequency:
            self.flush()

    def flush(self) -> None:
        if self._batch:
            self._file.write_numbered(self._batch)
            self._batch = []


class Tracer:
    """Decides which requests are traced, by settings for all models and for single ones.

    Attributes:
        is_on: Whether any request may be traced.
    """

    def __init__(self, options: TraceOptions | None = None) -> None:
        self._defaults = options or TraceOptions()
        self._file = TraceFile(self._defaults.file)
        self._changes: dict[str, dict[str, Any]] = {"": {}}
        self._settings = {"": _Setting(self._defaults, self._file)}
        self.is_on = self._settings[""].is_on()

    def traced(self, request: InferRequest, sink: Sink, protocol: str) -> Sink:
        """Trace a request if its turn has come; return the sink for its responses."""
        setting = self._settings.get(request.model_name) or self._settings[""]
        if not setting.samples():
            return sink
        trace = RequestTrace(request, setting)
        request.trace = trace
        return _TracedSink(trace, sink, protocol)

    def settings(self, model: str = "") -> dict[str, str | list[str]]:
        """The settings that hold for all models or for one, as clients see them."""
        setting = self._settings.get(model) or self._settings[""]
        options = setting.options
        return {
            "trace_level": list(options.levels) or ["OFF"],
            "trace_rate": str(options.rate),
            "trace_count": str(setting.left),
            "log_frequency": str(options.log_frequency),
            "trace_file": options.file,
            "trace_mode": "triton",
        }

    def change(self, model: str, changes: Mapping[str, Any]) -> None:
        """Set fields of `TraceOptions` for all models (no name) or one; None gives a field back to the general setting.

        Raises:
            InvalidRequestError: If nothing could be traced so, though it should be.
        """
        if not changes:
            return
        own = {**self._changes.get(model, {}), **changes}
        own = {field: value for field, value in own.items() if value is not None}
        _check(self._effective({**self._changes, model: own}, model))
        self._changes[model] = own
        for name, setting in list(self._settings.items()):
            if model in {"", name}:
                setting.flush()
                del self._settings[name]
        if not own and model:
            del self._changes[model]
        for name in self._changes:
            if name not in self._settings:
                self._settings[name] = _Setting(self._effective(self._changes, name), self._file)
        self.is_on = any(setting.is_on() for setting in self._settings.values())

    def close(self) -> None:
        """Write what was traced."""
        for setting in self._settings.values():
            setting.flush()
        self._file.close()

    def _effective(self, changes: Mapping[str, Mapping[str, Any]], model: str) -> TraceOptions:
        return replace(self._defaults, **{**changes[""], **changes[model]})


def _check(options: TraceOptions) -> None:
    reason = ""
    if options.levels and not options.rate:
        reason = "sample rate must be non-zero"
    elif options.levels and not options.file:
        reason = "trace file name is not given"
    if reason:
        raise InvalidRequestError(f"Attempting to set invalid trace setting :{reason}")


class RequestTrace:
    """What is noted of one request; times are nanoseconds of the monotonic clock."""

    __slots__ = ("_events", "_has_name", "_id", "_request", "_setting", "_with_tensors", "_with_times")

    def __init__(self, request: InferRequest, setting: _Setting) -> None:
        self._setting = setting
        self._request = request
        self._id = next(_ids)
        self._events: list[dict[str, Any]] = []
        self._has_name = False
        self._with_times = "TIMESTAMPS" in setting.options.levels
        self._with_tensors = "TENSORS" in setting.options.levels

    def note(self, name: str, when: int | None = None) -> None:
        """Note that something happened, now or at that time."""
        if self._with_times:
            stamp = {"name": name, "ns": time.monotonic_ns() if when is None else when}
            self._events.append({"id": self._id, "timestamps": [stamp]})

    def begin(self) -> None:
        """Note what is asked."""
        self.note("REQUEST_START")
        if self._with_tensors:
            for tensor in self._request.inputs:
                self._note_tensor("TENSOR_QUEUE_INPUT", tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def computed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """Note when the request was queued, taken to a guest, begun there, finished there, and answered."""
        self.note("QUEUE_START", queued)
        self.note("COMPUTE_START", laid_out)
        self.note("COMPUTE_INPUT_END", started)
        self.note("COMPUTE_OUTPUT_START", ended)
        self.note("COMPUTE_END", done)

    def answered(self, response: InferResponse | None) -> None:
        """Note a response."""
        self._name(self._request.model_version if response is None else response.model_version)
        self.note("INFER_RESPONSE_COMPLETE")
        if self._with_tensors and response is not None:
            for tensor in response.outputs:
                self._note_tensor("TENSOR_BACKEND_OUTPUT", tensor.name, tensor.datatype, tensor.shape, tensor.data)

    def end(self) -> None:
        """Nothing more will happen: write the trace."""
        self._setting.take(self._events)

    def _name(self, version: int) -> None:
        if self._has_name:
            return
        self._has_name = True
        named = {"id": self._id, "model_name": self._request.model_name, "model_version": version}
        if self._request.request_id:
            named["request_id"] = self._request.request_id
        self._events.insert(0, named)

    def _note_tensor(self, activity: str, name: str, datatype: Datatype, shape: tuple[int, ...], data: Buffer) -> None:
        tensor = {
            "name": name,
            "data": _elements(datatype, data),
            "shape": ",".join(map(str, shape)),
            "dtype": datatype.name,
        }
        self._events.append({"id": self._id, "activity": activity, "tensor": tensor})


def _elements(datatype: Datatype, data: Buffer) -> str:
    if datatype is Datatype.BYTES:
        return ",".join(f'"{element.decode("utf-8", "replace")}"' for element in _strings(data))
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


class _TracedSink:
    """Notes responses on their way to another sink."""

    __slots__ = ("_protocol", "_sink", "_trace")

    def __init__(self, trace: RequestTrace, sink: Sink, protocol: str) -> None:
        self._trace = trace
        self._sink = sink
        self._protocol = protocol
        received = "RECV" if protocol == "HTTP" else "WAITREAD"
        # The connection tells of a request once it is whole, so that both times are the one of its arrival.
        now = time.monotonic_ns()
        trace.note(f"{protocol}_{received}_START", now)
        trace.note(f"{protocol}_{received}_END", now)
        trace.begin()

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - Sink
        """Take a response."""
        trace = self._trace
        trace.answered(response)
        if final:
            trace.note("REQUEST_END")
        trace.note(f"{self._protocol}_SEND_START")
        self._sink.send(response, final)
        trace.note(f"{self._protocol}_SEND_END")
        if final:
            trace.end()

"""Traces: those of received requests, and those that a backend makes for the requests of its calls.

The server itself records the steps of a request. So a backend's activity callbacks are never called; what a trace made
here is good for is that a call made with it belongs to the trace of the received request.
"""

from __future__ import annotations

import itertools
from typing import Dict, Optional

from naiad_stub.native import memory
from naiad_stub.native.core import Core, HeldTrace
from naiad_stub.native.memory import Text

_LEVELS: Dict[int, str] = {0: "DISABLED", 1: "MIN", 2: "MAX", 4: "TIMESTAMPS", 8: "TENSORS"}
_ACTIVITIES = (
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
    "TENSOR_QUEUE_INPUT",
    "TENSOR_BACKEND_INPUT",
    "TENSOR_BACKEND_OUTPUT",
)


class TraceFunctions:
    """Functions on traces."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._traces = core.traces
        self._numbers = itertools.count(1)

    def backend_request_trace(self, request: int, trace: int) -> int:
        found = self._core.requests[request]
        received = found.request._trace
        if received is None:
            memory.set_uint64(trace, 0)
            return 0
        made = HeldTrace(next(self._numbers), 0, received)
        made.request_id = found.request._id
        handle = self._traces.add(made)
        found.attach(self._traces, handle)
        memory.set_uint64(trace, handle)
        return 0

    def server_inference_trace_new(
        self, trace: int, level: int, parent: int, activity: int, release: int, userp: int
    ) -> int:
        made = HeldTrace(next(self._numbers), parent, None)
        made.release, made.userp = release, userp
        memory.set_uint64(trace, self._traces.add(made))
        return 0

    def server_inference_trace_tensor_new(
        self, trace: int, level: int, parent: int, activity: int, tensors: int, release: int, userp: int
    ) -> int:
        return self.server_inference_trace_new(trace, level, parent, activity, release, userp)

    def server_inference_trace_delete(self, trace: int) -> int:
        self._traces.remove(trace)
        return 0

    def server_inference_trace_id(self, trace: int, id_: int) -> int:
        memory.set_uint64(id_, self._traces[trace].number)
        return 0

    def server_inference_trace_parent_id(self, trace: int, id_: int) -> int:
        memory.set_uint64(id_, self._traces[trace].parent)
        return 0

    def server_inference_trace_model_name(self, trace: int, name: int) -> int:
        self._lend(trace, name, memory.read_text(self._core.models[self._core.model].name.address))
        return 0

    def server_inference_trace_model_version(self, trace: int, version: int) -> int:
        self._traces[trace]
        memory.set_int64(version, self._core.models[self._core.model].version)
        return 0

    def server_inference_trace_request_id(self, trace: int, id_: int) -> int:
        self._lend(trace, id_, self._traces[trace].request_id)
        return 0

    def server_inference_trace_spawn_child_trace(self, trace: int, child: int) -> int:
        found = self._traces[trace]
        made = HeldTrace(next(self._numbers), found.number, found.trace)
        made.release, made.userp, made.context = found.release, found.userp, found.context
        memory.set_uint64(child, self._traces.add(made))
        return 0

    def server_inference_trace_set_context(self, trace: int, context: Optional[bytes]) -> int:
        self._traces[trace].context = memory.text_of(context, "the trace's context")
        return 0

    def server_inference_trace_context(self, trace: int, context: int) -> int:
        found = self._traces[trace]
        text = found.context or (None if found.trace is None else found.trace.get_context())
        if text is None:
            memory.set_uint64(context, 0)
        else:
            self._lend(trace, context, text)
        return 0

    def server_inference_trace_report_activity(self, trace: int, timestamp: int, activity: Optional[bytes]) -> int:
        self._traces[trace]
        return 0

    def server_inference_trace_level_string(self, level: int) -> int:
        return self._core.static_text(_LEVELS.get(level, "<unknown>"))

    def server_inference_trace_activity_string(self, activity: int) -> int:
        known = 0 <= activity < len(_ACTIVITIES)
        return self._core.static_text(_ACTIVITIES[activity] if known else "<unknown>")

    def _lend(self, trace: int, address: int, value: str) -> None:
        text = Text(value)
        self._traces[trace].kept.append(text)
        memory.set_uint64(address, text.address)

"""The fake engine behind the real engine's check of requests, and a log handler that collects errors."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from fakes.engine import FakeEngine, FakeModel
from fakes.submitted import Submitted

from naiad.config.model.model_config import freeze
from naiad.config.model.text import parse_mapping
from naiad.engine.serving.compile_plan import compile_plan
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor, Sink
from naiad.protocol.metadata import TensorMetadata

_BATCHING = {"add_sub"}


class CheckedEngine(FakeEngine):
    """`FakeEngine` with a check of each request against its model's configuration, as in the real engine."""

    def __init__(self) -> None:
        super().__init__()
        self.models["chat"] = FakeModel("chat", _talk, _texts("text_input", "messages"), _texts("text_output"))
        self.models["words"] = FakeModel("words", _echo, _texts("INPUT0"), _texts("OUTPUT0"))
        self._plans = {name: compile_plan(freeze(_config(model)), 1) for name, model in self.models.items()}
        for model in self.models.values():
            model.config = model.config or {"name": model.name, "max_batch_size": 0, "output": []}

    def submit(self, request: InferRequest, sink: Sink) -> Submitted:
        self._find(request.model_name, request.model_version)
        self._plans[request.model_name].check(request)
        if request.model_name == "repeat":
            number = int(np.frombuffer(request.inputs[0].data, "<i4")[0])
            request.inputs[0].data = np.array(
                [max(-3, min(number, 3))], "<i4"
            ).tobytes()  # bounded: the input may ask for two thousand million responses
        submitted = super().submit(request, sink)
        self.forget()
        return submitted

    def forget(self) -> None:
        """Forget all but the last few calls, so that long runs need little memory."""
        for kept in (self.requests, self.cancelled, self.loads, self.unloads):
            del kept[:-8]
        if len(self.confirmed_counts) > 1000:
            self.confirmed_counts.clear()


class ErrorLog(logging.Handler):
    """Collects errors of the log: no input may cause one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter("%(message)s").format(record))


def _texts(*names: str) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(name=name, datatype="BYTES", shape=(-1,)) for name in names)


def _config(model: FakeModel) -> Any:
    leading = 1 if model.name in _BATCHING else 0
    tensors = {
        side: [
            {
                "name": tensor.name,
                "data_type": f"TYPE_{'STRING' if tensor.datatype == 'BYTES' else tensor.datatype}",
                "dims": list(tensor.shape[leading:]),
                **({"optional": True} if side == "input" and model.name == "chat" else {}),
            }
            for tensor in declared
        ]
        for side, declared in (("input", model.inputs), ("output", model.outputs))
    }
    fields = {"name": model.name, "backend": "python", "max_batch_size": 8 * leading, **tensors}
    return parse_mapping(fields, model.name)


def _talk(engine: FakeEngine, request: InferRequest, sink: Sink) -> None:
    data = b"\x05\0\0\0hello"
    outputs = [OutputTensor("text_output", Datatype.BYTES, (1,), data)]
    sink.send(InferResponse(request.model_name, 1, request.request_id, outputs), False)
    sink.send(None, True)


def _echo(engine: FakeEngine, request: InferRequest, sink: Sink) -> None:
    tensor = request.inputs[0]
    outputs = [OutputTensor("OUTPUT0", tensor.datatype, tensor.shape, tensor.data)]
    sink.send(InferResponse(request.model_name, 1, request.request_id, outputs, request.parameters), True)

"""An engine without workers: a handful of models answered in this process, for tests of the frontends."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fakes.submitted import Submitted

from naiad.core.errors import Code, InvalidRequestError, ModelError, NaiadError, UnknownModelError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor, Sink
from naiad.protocol.metadata import (
    BatchStatistics,
    Duration,
    IndexEntry,
    InstanceStatus,
    ModelMetadata,
    ModelState,
    ModelStatistics,
    ServerMetadata,
    TensorMetadata,
)
from naiad.protocol.model_names import LATEST

Outputs = Sequence[OutputTensor]
Answer = Callable[["FakeEngine", InferRequest, Sink], None]


@dataclass
class FakeModel:
    """One model version with its answer to a request."""

    name: str
    answer: Answer
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    version: int = 1
    decoupled: bool = False
    ready: bool = True
    config: dict[str, Any] = field(default_factory=dict)


class FakeEngine:
    """Implements `naiad.engine.facade.EngineFacade`.

    - `add_sub` (FP32 INPUT0, INPUT1) and `identity` (INPUT0, any type) answer before `submit` returns;
    - `later` is `identity` answered by a later turn of the event loop;
    - `held` is `identity` answered when the test calls `release`;
    - `repeat` is decoupled: INT32 IN = n gives n responses (of FP32 OUT) and then an end without one; n < 0 gives
      one response, then an error that ends it;
    - `failing` answers with an error; `not_ready` exists but cannot infer.

    Attributes:
        places: Where bodies were given a place: version, size, bytes before the tensors, and the place's memory.
    """

    def __init__(self) -> None:
        self.started = True
        self.live = True
        self.ready = True
        self.stalled = ""
        self.requests: list[InferRequest] = []
        self.cancelled: list[int] = []
        self.confirmed_counts: dict[int, int] = {}
        self.held: dict[int, tuple[InferRequest, Sink]] = {}
        self.loads: list[tuple[str, dict[str, str | bytes]]] = []
        self.unloads: list[tuple[str, bool]] = []
        self.all_statistics: list[ModelStatistics] = [sample_statistics("add_sub"), sample_statistics("identity")]
        self.models = {model.name: model for model in _models()}
        self.places: list[tuple[int, int, int, weakref.ref[Any]]] = []
        self._numbers = 0  # of requests so far

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata(name="triton", version="2.73.0")

    def is_started(self) -> bool:
        return self.started

    def is_live(self) -> bool:
        return self.live

    def is_ready(self) -> bool:
        return self.ready

    async def check_server_ready(self) -> bool:
        return self.ready

    async def check_ready(self, name: str, version: int = LATEST) -> bool:
        return self.is_model_ready(name, version)

    def stalls(self, name: str, version: int = LATEST) -> str:
        self._find(name, version)
        return self.stalled

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        return self._find(name, version).ready

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        model = self._find(name, version)
        return ModelMetadata(
            name=name, versions=(str(model.version),), platform="python", inputs=model.inputs, outputs=model.outputs
        )

    def model_config(self, name: str, version: int = LATEST) -> Mapping[str, Any]:
        return self._find(name, version).config

    async def gather_counts(self) -> None:
        pass

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[ModelStatistics]:
        if not name:
            return self.all_statistics
        found = [s for s in self.all_statistics if s.name == name and version in {LATEST, int(s.version)}]
        if not found:
            raise InvalidRequestError(f"requested model '{name}' is not available")
        return found

    def ready_index(self) -> Sequence[IndexEntry]:
        return [entry for entry in self._index() if entry.state is ModelState.READY]

    async def repository_index(self) -> Sequence[IndexEntry]:
        return [*self._index(), IndexEntry(name="never_loaded")]

    def _index(self) -> list[IndexEntry]:
        return [
            IndexEntry(name=m.name, version=str(m.version), state=ModelState.READY)
            if m.ready
            else IndexEntry(name=m.name, version=str(m.version), state=ModelState.UNAVAILABLE, reason="unloaded")
            for m in self.models.values()
        ]

    async def load(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        await asyncio.sleep(0)
        if name == "broken":
            raise NaiadError("failed to load 'broken', failed to poll from model repository", code=Code.INTERNAL)
        self.loads.append((name, dict(parameters)))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        await asyncio.sleep(0)
        self.unloads.append((name, unload_dependents))

    def reserve_input(self, name: str, version: int, size: int, ahead: int) -> memoryview | None:
        self._find(name, version)
        if name == "later":
            return None
        memory = np.zeros(size, np.uint8)
        self.places.append((version, size, ahead, weakref.ref(memory)))
        return memoryview(memory)

    def submit(self, request: InferRequest, sink: Sink) -> Submitted:
        model = self._find(request.model_name, request.model_version)
        _check(model, request)
        return self.take(model, request, sink)

    def take(self, model: FakeModel, request: InferRequest, sink: Sink) -> Submitted:
        """Have a model answer a request."""
        self._numbers += 1
        submitted = Submitted(self._numbers, self._on_act)
        self.requests.append(request)
        model.answer(self, request, sink)
        return submitted

    def _on_act(self, submitted: Submitted) -> None:
        what, value = submitted.acts[-1]
        if what == "confirm_sent":
            self.confirmed_counts[submitted.number] = self.confirmed_counts.get(submitted.number, 0) + value
        elif what == "cancel":
            self.cancel(submitted.number)

    def cancel(self, number: int) -> None:
        """Its client has cancelled request *number*."""
        self.cancelled.append(number)
        if number in self.held:
            request, sink = self.held.pop(number)
            error = NaiadError("Request was cancelled", code=Code.CANCELLED)
            sink.send(InferResponse(request.model_name, 1, request.request_id, error=error), True)

    def is_decoupled(self, name: str, version: int = LATEST) -> bool:
        return self._find(name, version).decoupled

    def release(self) -> None:
        """Answer what the model `held` has taken, the last first."""
        while self.held:
            _, (request, sink) = self.held.popitem()
            _answer_identity(self, request, sink)

    def _find(self, name: str, version: int) -> FakeModel:
        model = self.models.get(name)
        if model is None:
            raise UnknownModelError(f"Request for unknown model: '{name}' is not found")
        if version not in {LATEST, model.version}:
            raise UnknownModelError(f"Request for unknown model: '{name}' version {version} is not found")
        return model


def sample_statistics(name: str, version: str = "1") -> ModelStatistics:
    """Statistics with a different number in every field."""
    return ModelStatistics(
        name=name,
        version=version,
        last_inference=1_700_000_000_123,
        inference_count=21,
        execution_count=11,
        success=Duration(20, 20_000_999),
        fail=Duration(3, 3_000_000),
        queue=Duration(20, 2_000_000),
        compute_input=Duration(20, 4_000_000),
        compute_infer=Duration(20, 5_000_000),
        compute_output=Duration(20, 6_000_000),
        is_cached=True,
        error_responses=5,
        pending_count=4,
        load_seconds=0.5,
        cache_hit=Duration(1, 70),
        cache_miss=Duration(2, 80),
        batch_stats=(
            BatchStatistics(
                batch_size=2, compute_input=Duration(1, 2), compute_infer=Duration(3, 4), compute_output=Duration(5, 6)
            ),
        ),
    )


def sample_instance(model: str, name: str = "", **fields: Any) -> InstanceStatus:
    """The status of an instance, of version 1 and in process 7 unless *fields* say otherwise."""
    given = {"version": "1", "pid": 7, "restarts": {}, "input_byte_size": 0, "borrowed_outputs": 0, **fields}
    return InstanceStatus(model=model, name=name or f"{model}_0", **given)


def _models() -> list[FakeModel]:
    fp32 = {"datatype": "FP32", "shape": (-1, 4)}
    pair = (TensorMetadata(name="INPUT0", **fp32), TensorMetadata(name="INPUT1", **fp32))
    sums = (TensorMetadata(name="OUTPUT0", **fp32), TensorMetadata(name="OUTPUT1", **fp32))
    one_in = (TensorMetadata(name="INPUT0", datatype="FP32", shape=(-1,)),)
    one_out = (TensorMetadata(name="OUTPUT0", datatype="FP32", shape=(-1,)),)
    return [
        FakeModel("add_sub", _answer_add_sub, pair, sums, config=_config("add_sub")),
        FakeModel("identity", _answer_identity, one_in, one_out),
        FakeModel("later", _answer_later, one_in, one_out),
        FakeModel("held", _hold, one_in, one_out),
        FakeModel("failing", _fail, one_in, one_out),
        FakeModel("not_ready", _fail, one_in, one_out, ready=False),
        FakeModel(
            "repeat",
            _answer_repeat,
            (TensorMetadata(name="IN", datatype="INT32", shape=(1,)),),
            (TensorMetadata(name="OUT", datatype="FP32", shape=(1,)),),
            decoupled=True,
        ),
    ]


def _config(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": 8,
        "input": [
            {"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]},
            {"name": "INPUT1", "data_type": "TYPE_FP32", "dims": [4]},
        ],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4], "label_filename": ""}],
        "dynamic_batching": {"max_queue_delay_microseconds": 500},
        "instance_group": [{"name": f"{name}_0", "kind": "KIND_CPU", "count": 1, "gpus": []}],
        "parameters": {"EXECUTION_ENV_PATH": {"string_value": "env.tar.gz"}},
    }


def _check(model: FakeModel, request: InferRequest) -> None:
    given = {tensor.name for tensor in request.inputs}
    for tensor in model.inputs:
        if tensor.name not in given:
            raise InvalidRequestError(f"missing required input '{tensor.name}' for model '{model.name}'")
    names = {tensor.name for tensor in model.outputs}
    for name in request.requested_outputs:
        if name not in names:
            raise InvalidRequestError(f"unexpected inference output '{name}' for model '{model.name}'")


def _respond(request: InferRequest, sink: Sink, outputs: Outputs, *, final: bool = True) -> None:
    wanted = [o for o in outputs if not request.requested_outputs or o.name in request.requested_outputs]
    sink.send(InferResponse(request.model_name, 1, request.request_id, wanted, request.parameters), final)


def _answer_add_sub(engine: FakeEngine, request: InferRequest, sink: Sink) -> None:
    by_name = {tensor.name: tensor for tensor in request.inputs}
    first = np.frombuffer(by_name["INPUT0"].data, "<f4")
    second = np.frombuffer(by_name["INPUT1"].data, "<f4")
    shape = by_name["INPUT0"].shape
    outputs = [
        OutputTensor("OUTPUT0", Datatype.FP32, shape, memoryview((first + second).tobytes())),
        OutputTensor("OUTPUT1", Datatype.FP32, shape, (first - second).tobytes()),
    ]
    _respond(request, sink, outputs)


def _answer_identity(engine: FakeEngine, request: InferRequest, sink: Sink) -> None:
    tensor = request.inputs[0]
    _respond(request, sink, [OutputTensor("OUTPUT0", tensor.datatype, tensor.shape, tensor.data)])


def _answer_later(engine: FakeEngine, request: InferRequest, sink: Sink) -> None:
    asyncio.get_running_loop().call_soon(_answer_identity, engine, request, sink)


def _hold(engine: FakeEngine, request: InferRequest, sink: Sink) -> None:
    engine.held[engine._numbers] = (request, sink)


def _fail(engine: FakeEngine, request: InferRequest, sink: Sink) -> None:
    text = "Failed to process the request(s) for model 'failing_0', message: ValueError: no luck"
    sink.send(InferResponse(request.model_name, 1, request.request_id, error=ModelError(text)), True)


def _answer_repeat(engine: FakeEngine, request: InferRequest, sink: Sink) -> None:
    count = int(np.frombuffer(request.inputs[0].data, "<i4")[0])
    for i in range(abs(count)):
        data = np.array([i], "<f4").tobytes()
        _respond(request, sink, [OutputTensor("OUT", Datatype.FP32, (1,), data)], final=False)
    if count < 0:
        error = ModelError("the model gave up")
        sink.send(InferResponse(request.model_name, 1, request.request_id, error=error), True)
    else:
        sink.send(None, True)

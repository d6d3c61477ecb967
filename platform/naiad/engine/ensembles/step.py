"""One step of one request to an ensemble: a request to a member model, made of outputs of the steps before.

Tensors are passed on by reference. A step's output may be borrowed memory of the guest that made it; the
reference keeps that memory from being reused until the next guest has copied it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from naiad.core.errors import Code, InvalidRequestError, NaiadError, unexpected_error, without_frames
from naiad.engine.open_request import Events, OpenRequest
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.engine.scheduling.ensembles.step_limits import StepLimits
from naiad.engine.served import Target
from naiad.engine.serving.device_use import usable_by_all
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import DeviceUse, device_bytes
from naiad.protocol.inference import (
    DEVICE_INPUTS,
    DEVICE_OUTPUTS,
    NO_PARAMETERS,
    SEQUENCE_END,
    SEQUENCE_START,
    Buffer,
    InferRequest,
    InferResponse,
    InputTensor,
    Parameter,
    Sink,
)

logger = logging.getLogger("naiad.engine")

# Called when a step has to wait, for an instance or for its turn, with what returns its waits.
OnStepWaiting: TypeAlias = Callable[[Callable[[], Events]], None]

_NO_DEVICE = DeviceUse()
_CALLER, _NO_READER = -1, -2
# Steps whose turn has come that are submitted in one turn of the event loop: each takes up to about 0.1 ms.
_SUBMITTED_AT_ONCE = 64


class StepTensor(NamedTuple):
    """A tensor that one step passes to the next."""

    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer
    batch_size: int  # size of its batch; 0 if the model that made it has no batch dimension
    # Sequence id and flags of the response it came with; None for what the client sent.
    sequence: tuple[int | str, int] | None

    def shape_for(self, dims: Sequence[int], is_batched: bool) -> tuple[int, ...]:  # noqa: FBT001 - on the request path
        """Its shape for a model whose input has *dims*.

        Producer and consumer may differ in whether they have a batch dimension; then one is added or removed.
        """
        if is_batched == (self.batch_size > 0):
            return self.shape
        fits = _fits(self.shape, dims)
        if is_batched:
            return (1, *self.shape) if fits else self.shape
        return self.shape[1:] if not fits and self.batch_size == 1 else self.shape


class StepPlan:
    """What all requests of one step to one load of a version have in common."""

    __slots__ = ("dims", "is_batched", "number", "outputs", "takers")

    def __init__(self, step: EnsembleStep, version: Target, takers: frozenset[str]) -> None:
        self.number = version.number
        # Its outputs that may stay in GPU memory for the steps that they are inputs of, if there are any. If they are
        # outputs of the ensemble as well, the request decides.
        self.takers = takers
        self.dims = {tensor.name: tensor.dims for tensor in version.config.inputs}
        self.is_batched = version.config.max_batch_size > 0
        self.outputs = tuple(sorted(step.outputs))

    def layout_key(self, inputs: Sequence[InputTensor]) -> Hashable:
        """The key of requests with such inputs (see `InferRequest.layout_key`): all that the check looks at."""
        return (self.outputs, *[(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in inputs])


class StepParent(Protocol):
    """The request to the ensemble that a step belongs to."""

    @property
    def request(self) -> InferRequest: ...

    @property
    def needs_idle(self) -> bool:
        """Whether that is a call of a model."""

    @property
    def is_ended(self) -> bool: ...

    def on_step_response(self, number: int, outputs: Mapping[str, StepTensor] | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        """A step has a response, or ends without a further one (None)."""

    def on_step_error(self, number: int, error: NaiadError, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        """A step returned an error, or was rejected."""


class StepModels(Protocol):
    """Finds the models of steps; a `Registry` does."""

    def find(self, name: str, version: int) -> Target:
        """What a request to a name and version goes to now; raises NaiadError if nothing serves it."""


class StepSubmitter:
    """Submits the steps of all requests to an ensemble, within `max_inflight_requests` of each step."""

    def __init__(self, graph: EnsembleGraph, models: StepModels, limit: int, on_waiting: OnStepWaiting) -> None:
        self.graph = graph
        self.models = models
        self.limits: StepLimits[StepRequest] = StepLimits(limit)
        self.on_waiting = on_waiting
        self.uses_device = False  # whether tensors may stay in GPU memory between steps
        self._plans: dict[int, StepPlan] = {}
        self._readers: dict[int, int] = {}  # by step: what alone gets its outputs
        self._following: deque[StepRequest] = deque()  # they have entered their step, and are submitted next
        self._is_submitting = False

    def plan(self, step: int, version: Target) -> StepPlan:
        """The plan of a step's requests to a version; a new one after the version was loaded again."""
        plan = self._plans.get(step)
        if plan is None or plan.number != version.number:
            found = self.graph.steps[step]
            plan = self._plans[step] = StepPlan(found, version, self._takers(found, version))
            self.uses_device = self.uses_device or any(
                self.graph.consumers.get(found.outputs[name]) for name in plan.takers
            )
        return plan

    def _takers(self, step: EnsembleStep, version: Target) -> frozenset[str]:
        """The outputs of a step that all steps which use them take in GPU memory."""
        if not version.device & DEVICE_OUTPUTS:
            return frozenset()
        consumers = self.graph.consumers
        return frozenset(
            name
            for name, tensor in step.outputs.items()
            if all(self.takes_device(index) for index in consumers.get(tensor, ()))
        )

    def takes_device(self, step: int) -> bool:
        found = self.graph.steps[step]
        try:
            return bool(self.models.find(found.model, found.version).device & DEVICE_INPUTS)
        except NaiadError:
            return False

    def reader_of(self, step: int, asked: InferRequest) -> int:
        """The load to whose guests all outputs of a step go; 0 if they go to several, or to a client."""
        reader = self._readers.get(step)
        if reader is None:
            reader = self._readers[step] = self._find_reader(step)
        if reader == _CALLER:
            return asked.reader
        plan = self._plans.get(reader)
        return 0 if plan is None else plan.number

    def _find_reader(self, step: int) -> int:
        """The step that alone gets all outputs of a step; `_CALLER` if the ensemble's caller does."""
        consumers: set[int] = set()
        for tensor in self.graph.steps[step].outputs.values():
            found = list(self.graph.consumers.get(tensor, ()))
            if len(found) > 1 or (found and tensor in self.graph.outputs):
                return _NO_READER
            consumers.update(found or [_CALLER if tensor in self.graph.outputs else _NO_READER])
        consumers.discard(_NO_READER)  # outputs that are dropped
        return consumers.pop() if len(consumers) == 1 else _NO_READER

    def gpus_of(self, steps: Iterable[int]) -> frozenset[bytes] | None:
        """The GPUs whose memory the models of all *steps* can use; None if that is not known."""
        found = []
        for index in steps:
            step = self.graph.steps[index]
            with contextlib.suppress(NaiadError):
                found.append(self.models.find(step.model, step.version).gpus)
        return usable_by_all(found)

    def begin(self, step_request: StepRequest) -> None:
        """Submit a step's request, now or when it is its turn."""
        if self.limits.enter(step_request.step, step_request):
            step_request.submit()
        else:
            self.on_waiting(step_request.waits)

    def on_ended(self, step_request: StepRequest) -> None:
        following = self.limits.leave(step_request.step, step_request)
        if following is not None:
            self._following.append(following)
            if not self._is_submitting:
                self._submit_following()

    def withdraw(self, step_request: StepRequest) -> None:
        """Do not submit a step that waits for its turn, or is submitted next; its end is told by `on_ended`."""
        if step_request in self._following:
            self._following.remove(step_request)

    def _submit_following(self) -> None:
        # A step may end before its `submit` returns: it is rejected, or its response is in the cache. Submitting the
        # next one from there would take more stack for each step that waits.
        self._is_submitting = True
        try:
            for _ in range(_SUBMITTED_AT_ONCE):
                if not self._following:
                    break
                self._following.popleft().submit()
        finally:
            self._is_submitting = bool(self._following)
            if self._following:
                asyncio.get_running_loop().call_soon(self._submit_following)


class StepRequest:
    """The request of one step in flight; the sink of its responses, and its trace.

    As a trace it only measures: an ensemble's statistics are the sums of its steps' times. If the client's request is
    traced, this trace is wrapped by a child of that.
    """

    __slots__ = (
        "_inputs",
        "_number",
        "_opened",
        "_parent",
        "_sequence",
        "_size",
        "_submitter",
        "step",
        "took",
    )

    def __init__(
        self,
        parent: StepParent,
        submitter: StepSubmitter,
        number: int,
        step: int,
        inputs: Sequence[tuple[str, StepTensor]],
    ) -> None:
        self.step = step  # position of the step in the ensemble
        self.took = (0, 0, 0)  # nanoseconds that its model took for input, inference and output
        self._parent = parent
        self._submitter = submitter
        self._number = number
        self._inputs = inputs
        self._opened: OpenRequest | None = None  # once it is its turn
        self._size = 0
        self._sequence: tuple[int | str, int] = (0, 0)

    def submit(self) -> None:
        """Submit the request to the step's model; call `on_step_error` of the parent if it is rejected."""
        parent, submitter = self._parent, self._submitter
        if parent.is_ended:
            parent.on_step_error(self._number, cancelled(), True)
            return
        request = None
        try:
            step = submitter.graph.steps[self.step]
            version = submitter.models.find(step.model, step.version)
            request = self._request(step, submitter.plan(self.step, version))
            self._inputs = ()
            trace = parent.request.trace
            sink = self if trace is None else trace.start_child(request, self)
            opened = self._opened = OpenRequest(request, sink, parent.needs_idle)
            version.accept(opened)
        except NaiadError as error:
            if request is not None and request.trace is not None:
                request.trace.on_rejected()
            self._release()
            parent.on_step_error(self._number, error, True)
            return
        except Exception as error:  # the client of the ensemble waits
            logger.exception("cannot submit a step of an ensemble")
            self._release()
            parent.on_step_error(self._number, unexpected_error("submit a step of the ensemble", error), True)
            return
        if opened.is_waiting:
            submitter.on_waiting(self.waits)

    def _release(self) -> None:
        if self._opened is not None:
            self._opened.release()  # its sink is the step

    def _request(self, step: EnsembleStep, plan: StepPlan) -> InferRequest:
        asked = self._parent.request
        self._sequence = _sequence_of(asked, [tensor for _, tensor in self._inputs], step.model)
        inputs = [
            InputTensor(name, tensor.datatype, tensor.shape_for(plan.dims.get(name, ()), plan.is_batched), tensor.data)
            for name, tensor in self._inputs
        ]
        if plan.is_batched:
            self._size = inputs[0].shape[0] if inputs and inputs[0].shape else 1
        device = None
        if asked.device is not None or self._submitter.uses_device:
            device = self._device_use(step, plan, inputs)
        return InferRequest(
            step.model,
            step.version,
            inputs,
            asked.request_id,
            plan.outputs,
            asked.parameters,
            self._sequence[0],
            self._sequence[1],
            asked.priority,
            asked.timeout_us,
            plan.layout_key(inputs),
            self,
            propagated=asked.propagated,
            device=device,
            reader=self._submitter.reader_of(self.step, asked),
        )

    def _device_use(self, step: EnsembleStep, plan: StepPlan, inputs: Sequence[InputTensor]) -> DeviceUse | None:
        """What the request has to do with GPU memory: inputs as they are, outputs as the next steps take them."""
        asked = self._parent.request.device or _NO_DEVICE
        leaving = self._submitter.graph.outputs
        kept = frozenset(
            name
            for name in plan.takers
            if step.outputs[name] not in leaving or asked.keeps_outputs or step.outputs[name] in asked.kept
        )
        places = {name: asked.places[tensor] for name, tensor in step.outputs.items() if tensor in asked.places}
        has_inputs = any(device_bytes(tensor.data) is not None for tensor in inputs)
        if not (has_inputs or kept or places):
            return None
        readers = self._readers(step, kept, asked) if kept else None
        return DeviceUse(has_inputs=has_inputs, kept=kept, places=places, readers=readers)

    def _readers(self, step: EnsembleStep, kept: frozenset[str], asked: DeviceUse) -> frozenset[bytes] | None:
        """The GPUs whose memory all readers of the outputs *kept* can use."""
        graph = self._submitter.graph
        tensors = {step.outputs[name] for name in kept}
        steps = {index for tensor in tensors for index in graph.consumers.get(tensor, ())}
        leaves = not tensors.isdisjoint(graph.outputs)
        return usable_by_all([self._submitter.gpus_of(steps), asked.readers if leaves else None])

    def on_computed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:  # noqa: ARG002 - see `Trace`
        """Note how long the step's model took; called before its last response."""
        self.took = (started - laid_out, ended - started, done - ended)

    on_composed = on_computed
    context = None

    def start_child(self, request: InferRequest, sink: Sink) -> Sink:  # noqa: ARG002 - see `Trace`
        return sink

    def on_rejected(self) -> None:
        """Nothing to do: `submit` catches the error."""

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        if response is None:
            self._parent.on_step_response(self._number, None, final)
            return
        error = response.error
        if error is None:
            try:
                sequence = _sequence_from(response.parameters, self._sequence)
            except InvalidRequestError as wrong:
                error = without_frames(wrong)
            else:
                outputs = {
                    tensor.name: StepTensor(tensor.datatype, tensor.shape, tensor.data, self._size, sequence)
                    for tensor in response.outputs
                }
                self._parent.on_step_response(self._number, outputs, final)
                return
        self._parent.on_step_error(self._number, error, final)

    def cancel(self) -> None:
        """Cancel the request; if the parent has ended, it needs no further responses."""
        if self._opened is not None:
            self._opened.cancel(drops_responses=self._parent.is_ended)
        else:
            self._submitter.withdraw(self)
            self._parent.on_step_error(self._number, cancelled(), True)

    def confirm_sent(self) -> None:
        """Note that one of its responses, and all that was made from it, has left for the client."""
        if self._opened is not None:
            self._opened.confirm_sent()

    @property
    def is_waiting(self) -> bool:
        return self._opened is None or self._opened.is_waiting

    def waits(self) -> Events:
        """What it waits for: an instance, or the steps whose turn comes first."""
        if self._opened is not None:
            return self._opened.waits()
        if not self._submitter.limits.is_waiting(self.step, self):
            return [()]  # it is submitted next
        holders = self._submitter.limits.inside(self.step)
        return [{worker for holder in holders for servers in holder.waits() for worker in servers}]


def cancelled() -> NaiadError:
    """The error of a cancelled request."""
    return NaiadError("Request was cancelled", code=Code.CANCELLED)


def input_tensor(tensor: InputTensor, batch_size: int) -> StepTensor:
    """An input of the ensemble as its steps get it; *batch_size* is 0 for an ensemble without a batch dimension."""
    return StepTensor(tensor.datatype, tensor.shape, tensor.data, batch_size, None)


def response_parameters(request: InferRequest, outputs: Sequence[StepTensor]) -> Mapping[str, Parameter]:
    """The parameters the reference adds to each response made by a step (CORE `CheckAndSetEnsembleOutput`)."""
    found = [tensor.sequence for tensor in outputs if tensor.sequence is not None]
    if not found:
        return NO_PARAMETERS
    correlation, flags = found[-1]
    if isinstance(request.correlation_id, str) != isinstance(correlation, str):
        correlation = "" if isinstance(request.correlation_id, str) else 0
    return {
        "sequence_id": correlation,
        "sequence_start": bool(flags & SEQUENCE_START),
        "sequence_end": bool(flags & SEQUENCE_END),
    }


def _sequence_of(request: InferRequest, inputs: Sequence[StepTensor], model: str) -> tuple[int | str, int]:
    found = list(dict.fromkeys([tensor.sequence for tensor in inputs if tensor.sequence is not None]))
    if not found:
        return (request.correlation_id, request.flags)
    if len(found) > 1:
        logger.error(
            "Different set of response parameters are set for '%s'. Parameter correlation ID %s, flags %d is used.",
            model,
            *found[0],
        )
    return found[0]


def _sequence_from(parameters: Mapping[str, Parameter], own: tuple[int | str, int]) -> tuple[int | str, int]:
    if not parameters or parameters.keys().isdisjoint(("sequence_id", "sequence_start", "sequence_end")):
        return own
    correlation: int | str = own[0]
    given = parameters.get("sequence_id", correlation)
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise InvalidRequestError(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    flags = 0
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        value = parameters.get(name, False)
        if not isinstance(value, bool):
            raise InvalidRequestError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
        flags |= flag * value
    return (given, flags)


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))

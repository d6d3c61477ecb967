"""One step of one request of an ensemble: a request to another model, made from what others have sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from naiad.engine.registry import Registry
from naiad.engine.served import ServedVersion
from naiad.errors import Code, InvalidRequestError, NaiadError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import (
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
from naiad.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.scheduling.ensembles.step_limits import StepLimits
from naiad.workers.worker import Worker

logger = logging.getLogger("naiad.engine")


class Flow(NamedTuple):
    """A tensor on its way from one step to the next.

    Attributes:
        datatype: Its datatype.
        shape: Its shape, batch dimension included.
        data: Its elements.
        batch_size: Size of its batch; 0 if the model that made it knows no batches.
        sequence: Sequence id and flags that go with it; None for what the client sent.
    """

    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer
    batch_size: int
    sequence: tuple[int | str, int] | None

    def shape_for(self, dims: Sequence[int], is_batched: bool) -> tuple[int, ...]:  # noqa: FBT001 - on the request path
        """Its shape for a taker of *dims*, where one of both knows batches and the other does not."""
        if is_batched == (self.batch_size > 0):
            return self.shape
        fits = _fits(self.shape, dims)
        if is_batched:
            return (1, *self.shape) if fits else self.shape
        return self.shape[1:] if not fits and self.batch_size == 1 else self.shape


class StepPlan:
    """What all requests of a step to one version have in common.

    Attributes:
        number: Of the version.
        dims: The version's inputs' dimensions, by name.
        is_batched: Whether it knows batches.
        outputs: The outputs to ask for.
    """

    __slots__ = ("dims", "is_batched", "number", "outputs")

    def __init__(self, step: EnsembleStep, version: ServedVersion) -> None:
        self.number = version.number
        self.dims = {tensor.name: tensor.dims for tensor in version.config.inputs}
        self.is_batched = version.config.max_batch_size > 0
        self.outputs = tuple(sorted(step.outputs))

    def layout_key(self, inputs: Sequence[InputTensor]) -> Hashable:
        """The key of requests with such inputs (see `InferRequest.layout_key`): all that the check looks at."""
        return (self.outputs, *[(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in inputs])


class StepOwner(Protocol):
    """The run that a step belongs to."""

    @property
    def request(self) -> InferRequest:
        """The request to the ensemble."""

    @property
    def alone(self) -> bool:
        """Whether that comes from a model."""

    @property
    def is_ended(self) -> bool:
        """Whether the client has its last answer."""

    def answered(self, number: int, outputs: Mapping[str, Flow] | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        """A step sent a response, or an end mark alone."""

    def failed(self, number: int, error: NaiadError, final: bool) -> None:  # noqa: FBT001 - likewise
        """A step answered with an error, or could not be submitted."""


class StepDesk:
    """What the steps of all requests of an ensemble share.

    Attributes:
        graph: The ensemble's steps.
        registry: Where their models are.
        limits: How many of each may be under way.
        when_waiting: Called when one waits for an instance.
    """

    def __init__(self, graph: EnsembleGraph, registry: Registry, limit: int, when_waiting: Callable[[], None]) -> None:
        self.graph = graph
        self.registry = registry
        self.limits: StepLimits[Submission] = StepLimits(limit)
        self.when_waiting = when_waiting
        self._plans: dict[int, StepPlan] = {}

    def plan(self, step: int, version: ServedVersion) -> StepPlan:
        """What all requests of a step to a version have in common."""
        plan = self._plans.get(step)
        if plan is None or plan.number != version.number:
            plan = self._plans[step] = StepPlan(self.graph.steps[step], version)
        return plan

    def begin(self, submission: Submission) -> None:
        """Submit a step's request, at once or when it is its turn."""
        if self.limits.enter(submission.step, submission):
            submission.submit()
        else:
            self.when_waiting()

    def done(self, submission: Submission) -> None:
        """A step has ended: it may be another's turn."""
        following = self.limits.leave(submission.step, submission)
        if following is not None:
            following.submit()


class Submission:
    """One step under way; the sink and the trace of its request.

    Attributes:
        step: Which step of the ensemble it is.
        took: Nanoseconds that its model took for input, inference and output.
    """

    __slots__ = (
        "_desk",
        "_inputs",
        "_key",
        "_number",
        "_run",
        "_sequence",
        "_size",
        "_version",
        "step",
        "took",
    )

    def __init__(
        self, run: StepOwner, desk: StepDesk, number: int, step: int, inputs: Sequence[tuple[str, Flow]]
    ) -> None:
        self.step = step
        self.took = (0, 0, 0)
        self._run = run
        self._desk = desk
        self._number = number
        self._inputs = inputs
        self._version: ServedVersion | None = None
        self._key = 0
        self._size = 0
        self._sequence: tuple[int | str, int] = (0, 0)

    def submit(self) -> None:
        """Send the request to the step's model; what is wrong with it is told to the run."""
        run, desk = self._run, self._desk
        if run.is_ended:
            run.failed(self._number, cancelled(), True)
            return
        request = None
        try:
            step = desk.graph.steps[self.step]
            version = self._version = desk.registry.find(step.model, step.version)
            request = self._request(step, desk.plan(self.step, version))
            self._inputs = ()
            trace = run.request.trace
            self._key = version.submit(
                request, self if trace is None else trace.start_child(request, self), alone=run.alone
            )
        except NaiadError as error:
            if request is not None and request.trace is not None:
                request.trace.on_rejected()
            run.failed(self._number, error, True)
            return
        if version.is_waiting(self._key):
            desk.when_waiting()

    def _request(self, step: EnsembleStep, plan: StepPlan) -> InferRequest:
        asked = self._run.request
        self._sequence = _sequence_of(asked, [flow for _, flow in self._inputs], step.model)
        inputs = [
            InputTensor(name, flow.datatype, flow.shape_for(plan.dims.get(name, ()), plan.is_batched), flow.data)
            for name, flow in self._inputs
        ]
        if plan.is_batched:
            self._size = inputs[0].shape[0] if inputs and inputs[0].shape else 1
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
        )

    def on_computed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:  # noqa: ARG002 - see `Trace`
        """Note how long the step's model took; told before its last response."""
        self.took = (started - laid_out, ended - started, done - ended)

    on_composed = on_computed
    context = None

    def start_child(self, request: InferRequest, sink: Sink) -> Sink:  # noqa: ARG002 - see `Trace`
        """Trace nothing: where something does, this stands behind it."""
        return sink

    def on_rejected(self) -> None:
        """Nothing to do: the run is told otherwise."""

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Take a response of the step's model."""
        if response is None:
            self._run.answered(self._number, None, final)
            return
        error = response.error
        if error is None:
            try:
                sequence = _told_sequence(response.parameters, self._sequence)
            except InvalidRequestError as wrong:
                error = wrong
            else:
                outputs = {
                    tensor.name: Flow(tensor.datatype, tensor.shape, tensor.data, self._size, sequence)
                    for tensor in response.outputs
                }
                self._run.answered(self._number, outputs, final)
                return
        self._run.failed(self._number, error, final)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        if self._version is not None:
            self._version.cancel(self._key)
            self._version.waive_flow_control(self._key)
        elif self._desk.limits.is_waiting(self.step, self):
            self._run.failed(self._number, cancelled(), True)

    def taken(self) -> None:
        """One of its responses, and all that was made from it, has left."""
        if self._version is not None:
            self._version.confirm_sent(self._key, 1)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an instance, or for others of its step."""
        return self._version is None or self._version.is_waiting(self._key)

    @property
    def waits(self) -> Sequence[Collection[Worker]]:
        """What it waits for (see `ServedVersion.waits_of`); where others hold it up, their guests."""
        if self._version is not None:
            return self._version.waits_of(self._key)
        holders = self._desk.limits.inside(self.step)
        return [{worker for holder in holders for servers in holder.waits for worker in servers}]


def cancelled() -> NaiadError:
    """The answer to a request that nobody waits for."""
    return NaiadError("Request was cancelled", code=Code.CANCELLED)


def flow_of_input(tensor: InputTensor, batch_size: int) -> Flow:
    """An input of the ensemble as its steps get it; *batch_size* is 0 for an ensemble without batches."""
    return Flow(tensor.datatype, tensor.shape, tensor.data, batch_size, None)


def response_parameters(request: InferRequest, outputs: Sequence[Flow]) -> Mapping[str, Parameter]:
    """What the reference adds to each response that a step has made (CORE `CheckAndSetEnsembleOutput`)."""
    told = [flow.sequence for flow in outputs if flow.sequence is not None]
    if not told:
        return NO_PARAMETERS
    correlation, flags = told[-1]
    if isinstance(request.correlation_id, str) != isinstance(correlation, str):
        correlation = "" if isinstance(request.correlation_id, str) else 0
    return {
        "sequence_id": correlation,
        "sequence_start": bool(flags & SEQUENCE_START),
        "sequence_end": bool(flags & SEQUENCE_END),
    }


def _sequence_of(request: InferRequest, inputs: Sequence[Flow], model: str) -> tuple[int | str, int]:
    """Sequence id and flags of a step's request: what came with its inputs, else the client's."""
    told = list(dict.fromkeys([flow.sequence for flow in inputs if flow.sequence is not None]))
    if not told:
        return (request.correlation_id, request.flags)
    if len(told) > 1:
        logger.error(
            "Different set of response parameters are set for '%s'. Parameter correlation ID %s, flags %d is used.",
            model,
            *told[0],
        )
    return told[0]


def _told_sequence(parameters: Mapping[str, Parameter], own: tuple[int | str, int]) -> tuple[int | str, int]:
    """Sequence id and flags that a response's parameters tell, else those of the step's request.

    Raises:
        InvalidRequestError: If one of them has the wrong type.
    """
    if not parameters or parameters.keys().isdisjoint(("sequence_id", "sequence_start", "sequence_end")):
        return own
    correlation: int | str = own[0]
    told = parameters.get("sequence_id", correlation)
    if isinstance(told, bool) or not isinstance(told, int | str):
        raise InvalidRequestError(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    flags = 0
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        value = parameters.get(name, False)
        if not isinstance(value, bool):
            raise InvalidRequestError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
        flags |= flag * value
    return (told, flags)


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))

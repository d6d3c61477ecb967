"""One request of an ensemble on its way: what `scheduling.ensemble` decides is carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from naiad.config.model.model_config import ModelConfig
from naiad.engine.ensembles.step import Flow, StepDesk, Submission, flow_of_input, response_parameters
from naiad.engine.serving.reshape import OutputReshape
from naiad.engine.statistics.counters import Statistics
from naiad.errors import NaiadError
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor, Sink
from naiad.protocol.request_plan import error_prefix
from naiad.scheduling.ensembles.progress import (
    Action,
    CancelStep,
    EndResponses,
    EnsembleProgress,
    FailRequest,
    ResponseConsumed,
    SendResponse,
    StartStep,
)


class Answers:
    """Makes the responses of an ensemble and counts them.

    Attributes:
        is_batched: Whether the ensemble knows batches.
        totals: Its statistics.
    """

    def __init__(self, config: ModelConfig, version: int) -> None:
        self.is_batched = config.max_batch_size > 0
        self.totals = Statistics(dict(config.message.metric_tags), is_cached=config.message.response_cache.enable)
        self._name = config.name
        self._version = version
        self._dims = {
            tensor.name: tensor.dims if tensor.reshape is None else tensor.reshape for tensor in config.outputs
        }
        self._reshape = OutputReshape(config)

    def response(self, request: InferRequest, outputs: Sequence[tuple[str, Flow]]) -> InferResponse:
        """A response with *outputs*."""
        response = InferResponse(self._name, self._version, request.request_id)
        response.outputs = [
            OutputTensor(name, flow.datatype, flow.shape_for(self._dims[name], self.is_batched), flow.data)
            for name, flow in outputs
        ]
        response.parameters = response_parameters(request, [flow for _, flow in outputs])
        if self._reshape.is_needed:
            self._reshape.apply(response)
        return response

    def error(self, request: InferRequest, error: NaiadError) -> InferResponse:
        """An error as a response."""
        return InferResponse(self._name, self._version, request.request_id, error=error)


class Run:
    """One request of an ensemble on its way.

    Attributes:
        request: The request.
        alone: Whether the request comes from a model.
    """

    __slots__ = (
        "_actions",
        "_answers",
        "_batch_size",
        "_begun",
        "_desk",
        "_is_first",
        "_is_left",
        "_is_working",
        "_machine",
        "_queued",
        "_sink",
        "_submissions",
        "_took",
        "_when_done",
        "alone",
        "request",
    )

    def __init__(
        self,
        desk: StepDesk,
        answers: Answers,
        request: InferRequest,
        sink: Sink,
        batch_size: int,
        *,
        alone: bool,
        when_done: Callable[[], None],
    ) -> None:
        self.request = request
        self.alone = alone
        self._desk = desk
        self._answers = answers
        self._sink = sink
        self._batch_size = batch_size
        self._when_done = when_done
        self._queued = self._begun = time.monotonic_ns()
        self._machine: EnsembleProgress[Flow] = EnsembleProgress(
            desk.graph, request.requested_outputs, error_prefix(request)
        )
        self._submissions: dict[int, Submission] = {}
        self._actions: list[Action[Flow]] = []
        self._is_working = False
        self._is_left = False
        self._is_first = True
        self._took = [0, 0, 0]

    @property
    def is_ended(self) -> bool:
        """Whether the client has its last answer."""
        return self._machine.is_ended

    @property
    def submissions(self) -> Collection[Submission]:
        """Its steps under way."""
        return self._submissions.values()

    def begin(self) -> None:
        """Start with the request's inputs."""
        self._begun = time.monotonic_ns()
        batch_size = self._batch_size if self._answers.is_batched else 0
        self._do(
            self._machine.start({tensor.name: flow_of_input(tensor, batch_size) for tensor in self.request.inputs})
        )

    def cancel(self) -> None:
        """The client has lost interest."""
        self._do(self._machine.cancel())

    def give_up(self, error: NaiadError) -> None:
        """End it with *error*."""
        self._do(self._machine.fail(error))

    def taken(self, count: int) -> None:
        """Responses have left for the client."""
        self._do(self._machine.on_responses_consumed(count))

    def waive_flow_control(self) -> None:
        """Nobody looks at further responses."""
        self._is_left = True
        self.taken(1 << 40)

    # -- what steps tell ----------------------------------------------------------------------------------------

    def answered(self, number: int, outputs: Mapping[str, Flow] | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        """A step sent a response, or an end mark alone."""
        if final:
            self._leave(number)
        self._do(self._machine.on_response(number, outputs, final))

    def failed(self, number: int, error: NaiadError, final: bool) -> None:  # noqa: FBT001 - likewise
        """A step answered with an error, or could not be submitted."""
        if final:
            self._leave(number)
        self._do(self._machine.on_step_failed(number, error, final))

    def _leave(self, number: int) -> None:
        submission = self._submissions.pop(number, None)
        if submission is None:
            return
        self._took = [sum(pair) for pair in zip(self._took, submission.took, strict=True)]
        self._desk.done(submission)

    # -- carrying out -------------------------------------------------------------------------------------------

    def _do(self, actions: Sequence[Action[Flow]]) -> None:
        """Carry *actions* out, after those that are being carried out now: steps may answer at once."""
        self._actions += actions
        if self._is_working:
            return
        self._is_working = True
        try:
            position = 0
            while position < len(self._actions):
                self._carry_out(self._actions[position])
                position += 1
        finally:
            self._actions.clear()
            self._is_working = False
        if self._machine.is_done:
            self._when_done()

    def _carry_out(self, action: Action[Flow]) -> None:
        match action:
            case StartStep(number, step, inputs):
                submission = self._submissions[number] = Submission(self, self._desk, number, step, inputs)
                self._desk.begin(submission)
            case SendResponse(outputs, final):
                self._respond(outputs, final=final)
            case ResponseConsumed(number):
                if number in self._submissions:
                    self._submissions[number].taken()
            case CancelStep(number):
                if number in self._submissions:
                    self._submissions[number].cancel()
            case EndResponses():
                self._succeeded()
                self._sink.send(None, True)
            case FailRequest(error):
                self._answers.totals.on_failure(time.monotonic_ns() - self._queued)
                self._sink.send(self._answers.error(self.request, error), True)

    def _respond(self, outputs: Sequence[tuple[str, Flow]], *, final: bool) -> None:
        if final:
            self._succeeded()
        if self._is_first:
            self._is_first = False
            self._answers.totals.on_first_response(time.monotonic_ns() - self._queued)
        response = self._answers.response(self.request, outputs)
        if self._is_left:
            self._do(self._machine.on_responses_consumed(1))
        self._sink.send(response, final)

    def _succeeded(self) -> None:
        now, begun = time.monotonic_ns(), self._begun
        self._answers.totals.on_composed(self._batch_size, self._queued, begun, now, self._took)
        if self.request.trace is not None:
            started, ended = begun + self._took[0], begun + self._took[0] + self._took[1]
            self.request.trace.on_composed(self._queued, begun, started, ended, ended + self._took[2])

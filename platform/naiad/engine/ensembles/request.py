"""One request to an ensemble in flight.

`engine.scheduling.ensembles.progress` is the state machine: given what the steps return, it decides which step
starts, which response leaves and when the request ends. `EnsembleRequest` feeds it and carries out its actions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from naiad.config.model.model_config import ModelConfig
from naiad.core import clock
from naiad.core.errors import NaiadError, unexpected_error, without_frames
from naiad.engine.ensembles.step import StepRequest, StepSubmitter, StepTensor, input_tensor, response_parameters
from naiad.engine.open_request import Events, OpenRequest
from naiad.engine.scheduling.ensembles.progress import (
    Action,
    CancelStep,
    EndResponses,
    EnsembleProgress,
    FailRequest,
    ResponseConsumed,
    SendResponse,
    StartStep,
)
from naiad.engine.serving.reshape import OutputReshape
from naiad.engine.statistics.counters import Statistics
from naiad.protocol.delivery import end_failed_sink
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor
from naiad.protocol.request_plan import error_prefix

logger = logging.getLogger("naiad.engine")

_ALL_RESPONSES = 1 << 40


class EnsembleResponses:
    """Makes the responses of an ensemble, and has its statistics."""

    def __init__(self, config: ModelConfig, version: int) -> None:
        self.is_batched = config.max_batch_size > 0
        self.totals = Statistics(dict(config.message.metric_tags), is_cached=config.message.response_cache.enable)
        self._name = config.name
        self._version = version
        self._dims = {
            tensor.name: tensor.dims if tensor.reshape is None else tensor.reshape for tensor in config.outputs
        }
        self._reshape = OutputReshape(config)

    def response(self, request: InferRequest, outputs: Sequence[tuple[str, StepTensor]]) -> InferResponse:
        response = InferResponse(self._name, self._version, request.request_id)
        response.outputs = [
            OutputTensor(name, tensor.datatype, tensor.shape_for(self._dims[name], self.is_batched), tensor.data)
            for name, tensor in outputs
        ]
        response.is_on_device = request.device is not None
        response.parameters = response_parameters(request, [tensor for _, tensor in outputs])
        if self._reshape.is_needed:
            self._reshape.apply(response)
        return response

    def of(self, request: InferRequest) -> tuple[str, int, str]:
        """Name and version of the ensemble, and the id of the request."""
        return self._name, self._version, request.request_id

    def error(self, request: InferRequest, error: NaiadError) -> InferResponse:
        return InferResponse(self._name, self._version, request.request_id, error=without_frames(error))


class EnsembleRequest:
    """One request to an ensemble in flight; the parent of its steps. Implements `Holder`."""

    __slots__ = (
        "_actions",
        "_batch_size",
        "_began",
        "_is_first",
        "_is_working",
        "_machine",
        "_on_done",
        "_opened",
        "_responses",
        "_sink",
        "_step_requests",
        "_submitter",
        "_took",
        "needs_idle",
        "request",
    )

    def __init__(
        self,
        submitter: StepSubmitter,
        responses: EnsembleResponses,
        opened: OpenRequest,
        batch_size: int,
        on_done: Callable[[EnsembleRequest], None],
    ) -> None:
        opened.holder = self
        self._opened = opened
        self.request = request = opened.request
        self.needs_idle = opened.needs_idle
        self._submitter = submitter
        self._responses = responses
        self._sink = opened.sink
        self._batch_size = batch_size
        self._on_done = on_done
        self._began = clock.monotonic_ns()
        self._machine: EnsembleProgress[StepTensor] = EnsembleProgress(
            submitter.graph, request.requested_outputs, error_prefix(request)
        )
        self._step_requests: dict[int, StepRequest] = {}
        self._actions: list[Action[StepTensor]] = []
        self._is_working = False
        self._is_first = True
        self._took = [0, 0, 0]

    @property
    def is_ended(self) -> bool:
        return self._machine.is_ended

    def begin(self) -> None:
        batch_size = self._batch_size if self._responses.is_batched else 0
        self._do(self._machine.start({tensor.name: input_tensor(tensor, batch_size) for tensor in self.request.inputs}))

    def fail(self, error: NaiadError) -> None:
        self._do(self._machine.fail(error))

    # -- `engine.open_request.Holder` -----------------------------------------------------------------------

    def cancel_request(self, _: OpenRequest) -> None:
        self._do(self._machine.cancel())

    def reject_waiting(self, _: OpenRequest, error: NaiadError) -> None:
        self.fail(error)

    def is_waiting(self, _: OpenRequest) -> bool:
        return any(step.is_waiting for step in self._step_requests.values())

    def waits_of(self, _: OpenRequest) -> Events:
        return [servers for step in self._step_requests.values() for servers in step.waits()]

    def confirm_responses(self, _: OpenRequest, count: int) -> None:
        self._do(self._machine.on_responses_consumed(count))

    def drop_responses(self, opened: OpenRequest) -> None:
        opened.drops_responses = True
        self.confirm_responses(opened, _ALL_RESPONSES)

    # -- callbacks of steps -------------------------------------------------------------------------------------

    def on_step_response(self, number: int, outputs: Mapping[str, StepTensor] | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        if final:
            self._remove(number)
        self._do(self._machine.on_response(number, outputs, final))

    def on_step_error(self, number: int, error: NaiadError, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        if final:
            self._remove(number)
        self._do(self._machine.on_step_failed(number, error, final))

    def _remove(self, number: int) -> None:
        step_request = self._step_requests.pop(number, None)
        if step_request is None:
            return
        self._took = [sum(pair) for pair in zip(self._took, step_request.took, strict=True)]
        self._submitter.on_ended(step_request)

    # -- carrying out -------------------------------------------------------------------------------------------

    def _do(self, actions: Sequence[Action[StepTensor]]) -> None:
        """Carry *actions* out, after those that are being carried out now.

        A step may respond before its `submit` returns, which leads back here: the actions that follow are appended to
        the list that the outer call works through, so that their order holds and the stack stays flat.
        """
        self._actions += actions
        if self._is_working:
            return
        self._is_working = True
        try:
            position = 0
            while position < len(self._actions):
                try:
                    self._carry_out(self._actions[position])
                except Exception as error:  # noqa: BLE001 - logged; the client waits, and so do later actions
                    self._on_unexpected(error)
                position += 1
        finally:
            self._actions.clear()
            self._is_working = False
        if self._machine.is_done:
            self._opened.release()
            self._on_done(self)

    def _on_unexpected(self, error: Exception) -> None:
        """End the request, and what is under way for it, because an action has raised *error*."""
        of = self._responses.of(self.request)
        name = of[0]
        logger.error("cannot carry out a request to ensemble '%s'", name, exc_info=error)
        if self._machine.is_ended:  # with the response that could not be sent
            end_failed_sink(self._sink, error, of)
        else:
            self._actions += self._machine.fail(unexpected_error(f"carry out the request to '{name}'", error))

    def _carry_out(self, action: Action[StepTensor]) -> None:
        match action:
            case StartStep(number, step, inputs):
                step_request = self._step_requests[number] = StepRequest(self, self._submitter, number, step, inputs)
                self._submitter.begin(step_request)
            case SendResponse(outputs, final):
                self._respond(outputs, final=final)
            case ResponseConsumed(number):
                if number in self._step_requests:
                    self._step_requests[number].confirm_sent()
            case CancelStep(number):
                if number in self._step_requests:
                    self._step_requests[number].cancel()
            case EndResponses():
                self._succeeded()
                self._sink.send(None, True)
            case FailRequest(error):
                self._responses.totals.on_failure(clock.monotonic_ns() - self._began)
                self._sink.send(self._responses.error(self.request, error), True)

    def _respond(self, outputs: Sequence[tuple[str, StepTensor]], *, final: bool) -> None:
        if final:
            self._succeeded()
        if self._is_first:
            self._is_first = False
            self._responses.totals.on_first_response(clock.monotonic_ns() - self._began)
        response = self._responses.response(self.request, outputs)
        if self._opened.drops_responses:
            self._do(self._machine.on_responses_consumed(1))
            if not final:
                return
        self._sink.send(response, final)

    def _succeeded(self) -> None:
        began = self._began
        self._responses.totals.on_composed(self._batch_size, began, clock.monotonic_ns(), self._took)
        if self.request.trace is not None:
            started, ended = began + self._took[0], began + self._took[0] + self._took[1]
            self.request.trace.on_composed(began, began, started, ended, ended + self._took[2])

"""Other models, for the calls of the model under test: functions, or models under test themselves."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from naiad_stub.calls import ResponseIterator
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.runtime import ModelCalls
from naiad_stub.tensor import Tensor

from naiad.core.errors import NaiadError
from naiad_embedded.testing.values import Call, Response, received, tensor_of

# A mapping of arrays by output name, a Response, a `TritonError`, or an iterable of those (a decoupled model).
FakeResponse: TypeAlias = Any


class FakeModel(Protocol):
    """A fake that is not a function: another model under test."""

    @property
    def decoupled(self) -> bool:
        """Whether a request may have any number of responses."""

    def respond(self, call: Call) -> list[Response]:
        """Its responses to a call."""


Fake: TypeAlias = "Callable[[Call], FakeResponse] | FakeModel"


class _NoChannel:
    """In place of the guest's channel: responses of fakes need none."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing."""

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing."""


class FakeCall:
    """One call in progress, with the attributes of `naiad_stub.calls.PendingCall` that `ResponseIterator` reads."""

    channel = _NoChannel()

    def __init__(self, responses: Iterator[InferenceResponse]) -> None:
        self.arrived: deque[InferenceResponse] = deque()
        self.is_ended = False
        self.is_cancelled = False
        self._responses = responses

    def advance(self) -> None:
        try:
            self.arrived.append(next(self._responses))
        except StopIteration:
            self.is_ended = True


class FakeCalls(ModelCalls):
    """Answers the calls of one model by fakes; it may call after `initialize` and before `finalize`."""

    def __init__(self, models: Mapping[str, Fake]) -> None:
        self.is_open = False
        self.models = dict(models)
        self.calls: list[Call] = []

    def exec(self, request: InferenceRequest, decoupled: bool) -> Any:  # noqa: FBT001 - the API's signature
        """Run *request* on the fake of its model."""
        if not self.is_open:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        if request._handle is not None:  # noqa: SLF001 - as the guest looks
            raise TritonModelException("Only requests that the model made itself can be run on other models.")
        call = _call_of(request, decoupled=decoupled)
        self.calls.append(call)
        responses = self._responses(call)
        if decoupled:
            return ResponseIterator._of(self, FakeCall(responses))  # type: ignore[arg-type] # noqa: SLF001 - made for this
        return next(responses)

    def async_exec(self, request: InferenceRequest, decoupled: bool) -> Awaitable[Any]:  # noqa: FBT001 - see above
        """The same on another thread, so that calls awaited together overlap."""
        loop = asyncio.get_running_loop()
        # In a copy of the context, by which the thread finds the runtime of this model.
        return loop.run_in_executor(None, contextvars.copy_context().run, self.exec, request, decoupled)

    def _responses(self, call: Call) -> Iterator[InferenceResponse]:
        try:
            responses = self._run_fake(call)
        except NaiadError as error:
            text = f"Model {call.model_name} - Error when running inference: {error.message}"
            yield InferenceResponse(error=TritonError(text))
            return
        for response in responses:
            yield _response(response, call)

    def _run_fake(self, call: Call) -> Iterable[FakeResponse]:
        """What the fake returns; raises NaiadError where a server would not pass the call on."""
        fake = self.models.get(call.model_name)
        if fake is None:
            fakes = ", ".join(self.models) or "none"
            raise NaiadError(
                f"Request for unknown model: '{call.model_name}' is not found (the test has fakes for: {fakes})"
            )
        returned = fake(call) if callable(fake) else fake.respond(call)
        is_stream = not isinstance(returned, (Mapping, TritonError))
        if not call.decoupled and (is_stream if callable(fake) else fake.decoupled):
            raise NaiadError(
                f"Model {call.model_name} is using the decoupled. The current BLS request call doesn't support models "
                "using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                "'async_exec' calls for decoupled models.'"
            )
        responses: Iterable[FakeResponse] = returned if is_stream else [returned]
        return responses

    # -- what ResponseIterator needs of `naiad_stub.calls.HostCalls` ----------------------------------------------

    def wait(self, call: FakeCall) -> None:
        if not (call.arrived or call.is_ended):
            call.advance()

    def next_result(self, call: FakeCall) -> tuple[InferenceResponse, int]:
        return call.arrived.popleft(), 0

    def call_on_arrival(self, call: FakeCall, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        """Have something arrive and call *then*."""
        self.wait(call)
        loop.call_soon(then)

    def cancel(self, call: FakeCall) -> None:
        call.is_cancelled = True

    def report_consumed(self, call: FakeCall, count: int) -> None:
        """Do nothing: fakes have no flow control."""

    def discard(self, call: FakeCall) -> None:
        """Do nothing: nothing is sent."""


def _call_of(request: InferenceRequest, *, decoupled: bool) -> Call:
    return Call(
        model_name=request._model_name,  # noqa: SLF001 - the API has no getter
        model_version=request._model_version,  # noqa: SLF001 - the API has no getter
        tensors={tensor.name(): received(tensor) for tensor in request._inputs},  # noqa: SLF001 - the API has no getter
        request_id=request.request_id(),
        correlation_id=request.correlation_id(),
        flags=request.flags(),
        timeout=request.timeout(),
        parameters=json.loads(request.parameters()),
        requested_outputs=tuple(request._outputs),  # noqa: SLF001 - the API has no getter
        decoupled=decoupled,
    )


def _response(returned: FakeResponse, call: Call) -> InferenceResponse:
    """What the model gets for what a fake returned; outputs that it did not request are left out."""
    if isinstance(returned, TritonError):
        return InferenceResponse(error=returned)
    parameters: Any = None
    outputs: Mapping[str, Any] = returned
    if isinstance(returned, Response):
        if returned.error is not None:
            number = list(type(returned.error.code)).index(returned.error.code)
            return InferenceResponse(error=TritonError._received(returned.error.message, number))  # noqa: SLF001 - made for this
        outputs, parameters = returned.tensors, returned.parameters
    if not isinstance(outputs, Mapping):
        raise TypeError(
            f"the fake of '{call.model_name}' answered with {type(returned).__name__}: give a dict of arrays by output "
            "name, a Response, a TritonError, or an iterable of those for a decoupled model"
        )
    tensors: list[Tensor] = [
        tensor_of(name, value)
        for name, value in outputs.items()
        if not call.requested_outputs or name in call.requested_outputs
    ]
    return InferenceResponse(tensors, parameters=parameters)

"""Other models, for the calls of the model under test: functions, or models under test themselves."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from naiad_stub.calls import ResponseIterator
from naiad_stub.exceptions import TritonError
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.tensor import Tensor

from naiad.errors import NaiadError
from naiad.testing.values import Call, Response, received, tensor_of

Answer: TypeAlias = Any
"""A mapping of arrays by output name, a Response, a `TritonError`, or an iterable of those (a decoupled model)."""


class Answering(Protocol):
    """A model that a fake stands for: another model under test."""

    @property
    def decoupled(self) -> bool:
        """Whether it answers any number of times."""

    def answer(self, call: Call) -> list[Response]:
        """Its responses to a call."""


Fake: TypeAlias = "Callable[[Call], Answer] | Answering"


class FakeCall:
    """One call under way, as `ResponseIterator` wants it.

    Attributes:
        arrived: Responses that nobody took yet.
        is_ended: Whether there are no more.
    """

    def __init__(self, answers: Iterator[InferenceResponse]) -> None:
        self.arrived: deque[InferenceResponse] = deque()
        self.is_ended = False
        self.is_cancelled = False
        self._answers = answers

    def advance(self) -> None:
        """Have the next response arrive, or the end."""
        try:
            self.arrived.append(next(self._answers))
        except StopIteration:
            self.is_ended = True


class FakeDesk:
    """Answers the calls of one model.

    Attributes:
        calls: All calls so far.
        models: The fakes by the names of the models they stand for.
    """

    def __init__(self, models: Mapping[str, Fake]) -> None:
        self.models = dict(models)
        self.calls: list[Call] = []

    def exec(self, request: InferenceRequest, *, decoupled: bool) -> InferenceResponse | ResponseIterator:
        """Run *request* on the fake of its model."""
        call = _call_of(request, decoupled=decoupled)
        self.calls.append(call)
        answers = self._answers(call)
        if decoupled:
            return ResponseIterator._of(self, FakeCall(answers))  # type: ignore[arg-type] # noqa: SLF001 - made for this
        return next(answers)

    def _answers(self, call: Call) -> Iterator[InferenceResponse]:
        try:
            answers = self._ask(call)
        except NaiadError as error:
            text = f"Model {call.model_name} - Error when running inference: {error.message}"
            yield InferenceResponse(error=TritonError(text))
            return
        for answer in answers:
            yield _response(answer, call)

    def _ask(self, call: Call) -> Iterable[Answer]:
        """What the fake answers; raises NaiadError where a server would not pass the call on."""
        fake = self.models.get(call.model_name)
        if fake is None:
            fakes = ", ".join(self.models) or "none"
            raise NaiadError(
                f"Request for unknown model: '{call.model_name}' is not found (the test has fakes for: {fakes})"
            )
        answer = fake(call) if callable(fake) else fake.answer(call)
        is_stream = not isinstance(answer, (Mapping, TritonError))
        if not call.decoupled and (is_stream if callable(fake) else fake.decoupled):
            raise NaiadError(
                f"Model {call.model_name} is using the decoupled. The current BLS request call doesn't support models "
                "using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                "'async_exec' calls for decoupled models.'"
            )
        answers: Iterable[Answer] = answer if is_stream else [answer]
        return answers

    # -- what ResponseIterator asks of a desk ---------------------------------------------------------------------

    def wait(self, call: FakeCall) -> None:
        """Have something arrive, or the end."""
        if not (call.arrived or call.is_ended):
            call.advance()

    def next_of(self, call: FakeCall) -> tuple[InferenceResponse, int]:
        """Take what has arrived."""
        return call.arrived.popleft(), 0

    def when_arrived(self, call: FakeCall, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        """Have something arrive and call *then*."""
        self.wait(call)
        loop.call_soon(then)

    def cancel(self, call: FakeCall) -> None:
        """Note that the model has cancelled its call; a fake goes on to its end."""
        call.is_cancelled = True

    def taken(self, call: FakeCall, count: int) -> None:
        """Nothing waits for it."""

    def leave(self, call: FakeCall) -> None:
        """Nothing waits for it."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """There is no channel to watch."""

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Likewise."""


def run_in_executor(run: Callable[[], Any]) -> Awaitable[Any]:
    """Run a call on a thread of the running loop, which goes on meanwhile."""
    return asyncio.get_running_loop().run_in_executor(None, run)


def _call_of(request: InferenceRequest, *, decoupled: bool) -> Call:
    return Call(
        model_name=request._model_name,  # noqa: SLF001 - the API has no getter
        model_version=request._model_version,  # noqa: SLF001 - likewise
        tensors={tensor.name(): received(tensor) for tensor in request._inputs},  # noqa: SLF001 - likewise
        request_id=request.request_id(),
        correlation_id=request.correlation_id(),
        flags=request.flags(),
        timeout=request.timeout(),
        parameters=json.loads(request.parameters()),
        requested_outputs=tuple(request._outputs),  # noqa: SLF001 - likewise
        decoupled=decoupled,
    )


def _response(answer: Answer, call: Call) -> InferenceResponse:
    """What the model gets for an answer; outputs that it did not ask for are left out."""
    if isinstance(answer, TritonError):
        return InferenceResponse(error=answer)
    parameters: Any = None
    outputs: Mapping[str, Any] = answer
    if isinstance(answer, Response):
        if answer.error is not None:
            number = list(type(answer.error.code)).index(answer.error.code)
            return InferenceResponse(error=TritonError._received(answer.error.message, number))  # noqa: SLF001 - made for this
        outputs, parameters = answer.tensors, answer.parameters
    if not isinstance(outputs, Mapping):
        raise TypeError(
            f"the fake of '{call.model_name}' answered with {type(answer).__name__}: give a dict of arrays by output "
            "name, a Response, a TritonError, or an iterable of those for a decoupled model"
        )
    tensors: list[Tensor] = [
        tensor_of(name, value)
        for name, value in outputs.items()
        if not call.requested_outputs or name in call.requested_outputs
    ]
    return InferenceResponse(tensors, parameters=parameters)

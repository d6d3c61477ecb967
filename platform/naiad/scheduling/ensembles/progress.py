"""One request's way through an ensemble: which steps start, what goes out, when it ends. Pure.

A step starts as soon as all tensors mapped to its inputs are there, so branches run side by side. Each response of a
decoupled step opens an iteration of its own: whatever is made from it belongs to that iteration, and a step joins
tensors of one iteration only (loading refuses ensembles that would have to join others). Tensors are whatever the
caller says; None stands for one that is known not to come: an optional input left out, an output not sent.

Rules: nothing goes out after the end; a step runs once per iteration; a response of a decoupled step is reported as
taken when everything made from it is done and has left for the client, which holds a fast producer back.
Texts: CORE src/ensemble_scheduler/ensemble_scheduler.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from naiad.errors import Code, InvalidRequestError, NaiadError
from naiad.scheduling.ensembles.graph import EnsembleGraph
from naiad.scheduling.interface import NamedTuple

__all__ = [
    "Action",
    "CancelStep",
    "EndResponses",
    "EnsembleProgress",
    "FailRequest",
    "Iteration",
    "ResponseConsumed",
    "SendResponse",
    "StartStep",
]

TensorT = TypeVar("TensorT")


class Iteration(Generic[TensorT]):
    """What was made from one response of a decoupled step, or from the request itself.

    Attributes:
        tensors: Tensors that somebody still waits for or will take.
    """

    __slots__ = ("live", "missing", "origin", "parent", "tensors", "unmade", "uses")

    def __init__(self, parent: Iteration[TensorT] | None, origin: int, wanted: int) -> None:
        self.parent = parent
        self.origin = origin  # the number of the step that sent the response
        self.live = 1  # steps under way, responses on their way to the client, iterations below; and whoever made it
        self.tensors: dict[str, TensorT | None] = {}
        self.uses: dict[str, int] = {}  # how often each will be taken yet
        self.missing: dict[int, int] = {}  # how many tensors a step still waits for, once it has one
        self.unmade = wanted  # how many of the client's outputs have not come about


class StartStep(NamedTuple, Generic[TensorT]):
    """Submit a step's request; report under *number*. Inputs that will not come are left out."""

    number: int
    step: int
    inputs: Sequence[tuple[str, TensorT]]


class SendResponse(NamedTuple, Generic[TensorT]):
    """Answer the client; outputs that did not come are left out."""

    outputs: Sequence[tuple[str, TensorT]]
    final: bool


class ResponseConsumed(NamedTuple):
    """One response of the step under this number has left."""

    number: int


class CancelStep(NamedTuple):
    """Nobody waits for this step any more."""

    number: int


class EndResponses(NamedTuple):
    """Say that there are no more responses."""


class FailRequest(NamedTuple):
    """Answer with an error, which is the end."""

    error: NaiadError


Action: TypeAlias = (
    StartStep[TensorT] | SendResponse[TensorT] | ResponseConsumed | CancelStep | EndResponses | FailRequest
)


class EnsembleProgress(Generic[TensorT]):
    """One request's way. Every method returns what is to be done, in order.

    Attributes:
        is_ended: Whether the client has its last answer.
    """

    def __init__(self, graph: EnsembleGraph, requested: Collection[str] = (), prefix: str = "") -> None:
        """Prepare a run.

        Args:
            graph: The ensemble.
            requested: The outputs that the client wants; empty for all.
            prefix: How errors about the request begin.
        """
        self.is_ended = False
        self._graph = graph
        self._wanted = [name for name in graph.outputs if name in requested] if requested else graph.outputs
        self._takers = graph.consumers
        if len(self._wanted) < len(graph.outputs):
            needed = graph.needed_for(self._wanted)
            self._takers = {
                name: tuple(index for index in takers if index in needed) for name, takers in graph.consumers.items()
            }
        self._prefix = prefix
        self._under_way: dict[int, tuple[int, Iteration[TensorT]]] = {}
        self._untaken: deque[Iteration[TensorT]] = deque()
        self._last = 0
        self._has_answered = False
        self._is_cancelled = False

    @property
    def is_done(self) -> bool:
        """Whether it has ended and no step is under way any more."""
        return self.is_ended and not self._under_way

    def start(self, inputs: Mapping[str, TensorT]) -> list[Action[TensorT]]:
        """Start with the request's inputs; those it left out are known not to come."""
        actions: list[Action[TensorT]] = []
        root: Iteration[TensorT] = Iteration(None, 0, len(self._wanted))
        self._add(root, {name: inputs.get(name) for name in self._graph.inputs}, actions)
        return actions

    def on_response(
        self,
        number: int,
        outputs: Mapping[str, TensorT] | None,
        final: bool,  # noqa: FBT001 - as `Sink.send`
    ) -> list[Action[TensorT]]:
        """The step under *number* sent a response (None: an end mark alone)."""
        actions: list[Action[TensorT]] = []
        entry = self._under_way.pop(number, None) if final else self._under_way.get(number)
        if entry is None:
            return actions
        index, iteration = entry
        step = self._graph.steps[index]
        if self.is_ended:
            if outputs is not None and step.decoupled:
                actions.append(ResponseConsumed(number))
            return actions
        if outputs is not None:
            made = {tensor: outputs.get(name) for name, tensor in step.outputs.items()}
            if step.decoupled:
                iteration.live += 1
                child = Iteration(iteration, number, len(self._wanted))
                self._add(child, made, actions)
                self._release(child, actions)
            else:
                self._add(iteration, made, actions)
        else:
            self._end_if_idle(actions)
        if final:
            self._release(iteration, actions)
        return actions

    def on_step_failed(self, number: int, error: NaiadError, final: bool) -> list[Action[TensorT]]:  # noqa: FBT001 - likewise
        """The step under *number* answered with an error, or could not be submitted (which is final)."""
        actions: list[Action[TensorT]] = []
        entry = self._under_way.pop(number, None) if final else self._under_way.get(number)
        if entry is not None and not self.is_ended:
            self._fail(error, actions)
        return actions

    def cancel(self) -> list[Action[TensorT]]:
        """The client has lost interest: cancel what is under way, begin nothing more."""
        if self.is_ended or self._is_cancelled:
            return []
        self._is_cancelled = True
        return [CancelStep(number) for number in self._under_way]

    def fail(self, error: NaiadError) -> list[Action[TensorT]]:
        """End it with *error* for a reason of the caller's; cancel what is under way."""
        actions: list[Action[TensorT]] = []
        if not self.is_ended:
            self.is_ended = True
            actions.append(FailRequest(error))
            actions += [CancelStep(number) for number in self._under_way]
        return actions

    def on_responses_consumed(self, count: int) -> list[Action[TensorT]]:
        """The oldest *count* responses have left for the client."""
        actions: list[Action[TensorT]] = []
        for _ in range(min(count, len(self._untaken))):
            self._release(self._untaken.popleft(), actions)
        return actions

    # -- how it goes on -----------------------------------------------------------------------------------------

    def _add(
        self, iteration: Iteration[TensorT], made: Mapping[str, TensorT | None], actions: list[Action[TensorT]]
    ) -> None:
        """Tensors have come about: start what they complete, send what is whole."""
        ready: list[int] = []
        is_wanted = False
        for name, tensor in made.items():
            takers = self._takers.get(name, ())
            if name in self._wanted:
                is_wanted = True
                iteration.unmade -= 1
                iteration.tensors[name], iteration.uses[name] = tensor, len(takers) + 1
            elif takers:
                iteration.tensors[name], iteration.uses[name] = tensor, len(takers)
            for index in takers:
                missing = iteration.missing.get(index, self._graph.input_counts[index]) - 1
                iteration.missing[index] = missing
                if not missing:
                    ready.append(index)
        if ready and self._is_cancelled:
            self._fail(NaiadError("Request was cancelled", code=Code.CANCELLED), actions)
            return
        for index in sorted(ready):
            self._start(index, iteration, actions)
        if is_wanted and not iteration.unmade:
            self._respond(iteration, actions)
        else:
            self._end_if_idle(actions)

    def _start(self, index: int, iteration: Iteration[TensorT], actions: list[Action[TensorT]]) -> None:
        inputs = []
        sources = self._graph.steps[index].inputs
        for name, source in sources:
            tensor = iteration.tensors[source]
            if tensor is not None:
                inputs.append((name, tensor))
        for source in dict.fromkeys(source for _, source in sources):
            _use(iteration, source)
        self._last += 1
        self._under_way[self._last] = (index, iteration)
        iteration.live += 1
        actions.append(StartStep(self._last, index, inputs))

    def _respond(self, iteration: Iteration[TensorT], actions: list[Action[TensorT]]) -> None:
        outputs = []
        for name in self._wanted:
            tensor = iteration.tensors[name]
            _use(iteration, name)
            if tensor is not None:
                outputs.append((name, tensor))
        self._has_answered = True
        self.is_ended = not self._under_way
        if self._graph.decoupled:
            iteration.live += 1
            self._untaken.append(iteration)
        actions.append(SendResponse(outputs, self.is_ended))

    def _end_if_idle(self, actions: list[Action[TensorT]]) -> None:
        if self._under_way or self.is_ended:
            return
        if self._has_answered or self._graph.decoupled:
            self.is_ended = True
            actions.append(EndResponses())
        else:
            text = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
            self._fail(InvalidRequestError(f"{self._prefix}{text}"), actions)

    def _fail(self, error: NaiadError, actions: list[Action[TensorT]]) -> None:
        self.is_ended = True
        actions.append(FailRequest(NaiadError(f"in ensemble '{self._graph.name}', {error.message}", code=error.code)))
        # A single answer under way is let come, as in the reference; a stream might go on for ever.
        actions += [CancelStep(n) for n, (index, _) in self._under_way.items() if self._graph.steps[index].decoupled]

    def _release(self, iteration: Iteration[TensorT], actions: list[Action[TensorT]]) -> None:
        """One of those that keep *iteration* is done."""
        iteration.live -= 1
        while not iteration.live and iteration.parent is not None:
            if iteration.origin in self._under_way:
                actions.append(ResponseConsumed(iteration.origin))
            iteration = iteration.parent
            iteration.live -= 1


def _use(iteration: Iteration[TensorT], name: str) -> None:
    iteration.uses[name] -= 1
    if not iteration.uses[name]:
        del iteration.tensors[name], iteration.uses[name]

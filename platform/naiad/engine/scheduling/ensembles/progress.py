"""The progress of one request through an ensemble: which steps start, which responses leave, when it ends. Pure.

Documented in Triton's ensemble_models.md. The rules:

1. A step starts as soon as all tensors mapped to its inputs exist, so independent branches run concurrently.
2. Each response of a decoupled step opens an *iteration*. All tensors made from that response belong to it. A step
   combines tensors of one iteration only, and runs once per iteration; loading rejects ensembles that would have to
   combine tensors of different decoupled steps.
3. The client receives a response when all requested outputs of an iteration exist. No response follows the final one.
4. A response of a decoupled step counts as consumed when everything made from it has finished and has left for the
   client. This holds a fast producer back.

Tensors are any values of the caller; None is a tensor that will never exist: an omitted optional input or output.
Texts: CORE src/ensemble_scheduler/ensemble_scheduler.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from naiad.core.errors import Code, InvalidRequestError, NaiadError
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph
from naiad.engine.scheduling.interface import NamedTuple

TensorT = TypeVar("TensorT")


class Iteration(Generic[TensorT]):
    """The tensors made from one response of a decoupled step, or from the request itself."""

    __slots__ = ("missing", "missing_outputs", "origin", "parent", "references", "tensors", "uses")

    def __init__(self, parent: Iteration[TensorT] | None, origin: int | None, wanted: int) -> None:
        self.parent = parent
        self.origin = origin  # number of the step that sent the response; None for the request itself
        # References: steps under way, responses that have not left, child iterations, and the creating call.
        self.references = 1
        self.tensors: dict[str, TensorT | None] = {}  # tensors that are still needed
        self.uses: dict[str, int] = {}  # remaining uses of each tensor
        self.missing: dict[int, int] = {}  # number of missing inputs, for steps that have at least one
        self.missing_outputs = wanted  # number of requested outputs that do not exist yet


class StartStep(NamedTuple, Generic[TensorT]):
    """Action: submit the request of a step; its responses are reported with *number*. Missing inputs are left out."""

    number: int
    step: int
    inputs: Sequence[tuple[str, TensorT]]


class SendResponse(NamedTuple, Generic[TensorT]):
    """Action: send a response to the client; missing outputs are left out."""

    outputs: Sequence[tuple[str, TensorT]]
    final: bool


class ResponseConsumed(NamedTuple):
    """Action: report one response of the step of this number as consumed."""

    number: int


class CancelStep(NamedTuple):
    """Action: cancel the step of this number."""

    number: int


class EndResponses(NamedTuple):
    """Action: end the responses, without another one."""


class FailRequest(NamedTuple):
    """Action: send an error as the final response."""

    error: NaiadError


Action: TypeAlias = (
    StartStep[TensorT] | SendResponse[TensorT] | ResponseConsumed | CancelStep | EndResponses | FailRequest
)


class EnsembleProgress(Generic[TensorT]):
    """The state of one request. Every method returns the actions to perform, in order."""

    def __init__(self, graph: EnsembleGraph, requested: Collection[str] = (), prefix: str = "") -> None:
        """Prepare a run; *requested* is empty for all outputs, *prefix* the beginning of errors about the request."""
        self.is_ended = False
        self._graph = graph
        self._wanted = [name for name in graph.outputs if name in requested] if requested else graph.outputs
        self._consumers = graph.consumers
        if len(self._wanted) < len(graph.outputs):
            needed = graph.needed_for(self._wanted)
            self._consumers = {
                name: tuple(index for index in consumers if index in needed)
                for name, consumers in graph.consumers.items()
            }
        self._prefix = prefix
        self._under_way: dict[int, tuple[int, Iteration[TensorT]]] = {}
        self._unconsumed: deque[Iteration[TensorT]] = deque()
        self._last = 0
        self._has_responded = False
        self._is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.is_ended and not self._under_way

    def start(self, inputs: Mapping[str, TensorT]) -> list[Action[TensorT]]:
        actions: list[Action[TensorT]] = []
        root: Iteration[TensorT] = Iteration(None, None, len(self._wanted))
        self._add(root, {name: inputs.get(name) for name in self._graph.inputs}, actions)
        return actions

    def on_response(
        self,
        number: int,
        outputs: Mapping[str, TensorT] | None,
        final: bool,  # noqa: FBT001 - as `Sink.send`
    ) -> list[Action[TensorT]]:
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
                iteration.references += 1
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

    def on_step_failed(self, number: int, error: NaiadError, final: bool) -> list[Action[TensorT]]:  # noqa: FBT001 - as `Sink.send`
        """The step of *number* failed, or could not be submitted (which is final)."""
        actions: list[Action[TensorT]] = []
        entry = self._under_way.pop(number, None) if final else self._under_way.get(number)
        if entry is not None and not self.is_ended:
            self._fail(error, actions)
        return actions

    def cancel(self) -> list[Action[TensorT]]:
        if self.is_ended or self._is_cancelled:
            return []
        self._is_cancelled = True
        return [CancelStep(number) for number in self._under_way]

    def fail(self, error: NaiadError) -> list[Action[TensorT]]:
        actions: list[Action[TensorT]] = []
        if not self.is_ended:
            self.is_ended = True
            actions.append(FailRequest(error))
            actions += [CancelStep(number) for number in self._under_way]
        return actions

    def on_responses_consumed(self, count: int) -> list[Action[TensorT]]:
        actions: list[Action[TensorT]] = []
        for _ in range(min(count, len(self._unconsumed))):
            self._release(self._unconsumed.popleft(), actions)
        return actions

    # -- progress -----------------------------------------------------------------------------------------------

    def _add(
        self, iteration: Iteration[TensorT], made: Mapping[str, TensorT | None], actions: list[Action[TensorT]]
    ) -> None:
        """Add new tensors: start the steps whose inputs are complete, send the response if it is complete."""
        ready: list[int] = []
        is_wanted = False
        for name, tensor in made.items():
            consumers = self._consumers.get(name, ())
            if name in self._wanted:
                is_wanted = True
                iteration.missing_outputs -= 1
                iteration.tensors[name], iteration.uses[name] = tensor, len(consumers) + 1
            elif consumers:
                iteration.tensors[name], iteration.uses[name] = tensor, len(consumers)
            for index in consumers:
                missing = iteration.missing.get(index, self._graph.input_counts[index]) - 1
                iteration.missing[index] = missing
                if not missing:
                    ready.append(index)
        if ready and self._is_cancelled:
            self._fail(NaiadError("Request was cancelled", code=Code.CANCELLED), actions)
            return
        for index in sorted(ready):
            self._start(index, iteration, actions)
        if is_wanted and not iteration.missing_outputs:
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
        iteration.references += 1
        actions.append(StartStep(self._last, index, inputs))

    def _respond(self, iteration: Iteration[TensorT], actions: list[Action[TensorT]]) -> None:
        outputs = []
        for name in self._wanted:
            tensor = iteration.tensors[name]
            _use(iteration, name)
            if tensor is not None:
                outputs.append((name, tensor))
        self._has_responded = True
        self.is_ended = not self._under_way
        if self._graph.decoupled:
            iteration.references += 1
            self._unconsumed.append(iteration)
        actions.append(SendResponse(outputs, self.is_ended))

    def _end_if_idle(self, actions: list[Action[TensorT]]) -> None:
        if self._under_way or self.is_ended:
            return
        if self._has_responded or self._graph.decoupled:
            self.is_ended = True
            actions.append(EndResponses())
        else:
            text = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
            self._fail(InvalidRequestError(f"{self._prefix}{text}"), actions)

    def _fail(self, error: NaiadError, actions: list[Action[TensorT]]) -> None:
        self.is_ended = True
        actions.append(FailRequest(NaiadError(f"in ensemble '{self._graph.name}', {error.message}", code=error.code)))
        # As in the reference, steps with a single response are not cancelled. A decoupled one might never end.
        actions += [CancelStep(n) for n, (index, _) in self._under_way.items() if self._graph.steps[index].decoupled]

    def _release(self, iteration: Iteration[TensorT], actions: list[Action[TensorT]]) -> None:
        """Release one reference to *iteration*; without references, its response counts as consumed."""
        iteration.references -= 1
        while not iteration.references and iteration.parent is not None:
            if iteration.origin in self._under_way:
                actions.append(ResponseConsumed(iteration.origin))
            iteration = iteration.parent
            iteration.references -= 1


def _use(iteration: Iteration[TensorT], name: str) -> None:
    iteration.uses[name] -= 1
    if not iteration.uses[name]:
        del iteration.tensors[name], iteration.uses[name]

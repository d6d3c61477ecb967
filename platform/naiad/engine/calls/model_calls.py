"""Calls of models to other models (business logic scripting, BLS).

A call is submitted like any other request; its sink sends the responses to the calling guest. Every call is submitted
with `needs_idle`: only an instance that holds no other request may take it. Behind a request whose model calls back
into the caller it would wait forever.

A call that its instance waits for may close a cycle of instances that wait for each other. It is rejected with an error
that names the cycle; the reference hangs. Calls by other threads than the main one are not looked at: only the guest
could know what its threads wait for. Other texts are the reference's (PB src/request_executor.cc).

A new call can close a cycle only if the instances that it waits for wait themselves. This is checked first: the cost
does not depend on the number of open calls. The cost of a search does: if there are many, one search that is delayed
serves all calls made until then.

Other processes of the server execute calls of their guests, too, and report what these wait for if that lasts. Such a
report may be old: the coordinator asks again before it rejects a call because of one. What each call waited for at both
times, by the number of the call, it has waited for in between, so all of it at the same time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from naiad.core import clock
from naiad.core.errors import Code, ModelError, NaiadError, NotReadyError, UnknownModelError
from naiad.engine.open_request import Events, OpenRequest
from naiad.engine.registry import Registry
from naiad.engine.scheduling.deadlock import deadlock_cycle, find_deadlocked
from naiad.engine.served import Target
from naiad.guests.calls import ModelCall
from naiad.guests.worker import Worker
from naiad.protocol.device_bytes import DeviceUse
from naiad.protocol.inference import (
    CALL_CHAIN,
    DEVICE_INPUTS,
    DEVICE_OUTPUTS,
    NO_HEADERS,
    InferResponse,
    Sink,
)

CallId: TypeAlias = tuple[Worker, int]  # the calling guest, and its number of the call

_FEW_CALLS = 32  # among so many, a search takes less than 0.1 ms
_KEPT_UNKNOWN = 64  # a model may make up a name for each call
# A search takes 2 to 4 us for each open call: with this delay for each, searches need less than a tenth of the time.
_SEARCH_DELAY_PER_CALL = 50e-6


class OpenCall:
    """One call in flight, and the sink of its responses.

    Attributes:
        is_submitted: Whether `accept` of its model has returned: until then, `on_call` looks at it next.
    """

    __slots__ = ("_calls", "_response", "began", "call", "is_discarded", "is_submitted", "opened", "worker")

    def __init__(self, calls: ModelCalls, worker: Worker, call: ModelCall) -> None:
        self.worker = worker
        self.call = call
        self.opened = OpenRequest(call.request, _caused(worker, call, self), True)
        self.began = clock.monotonic_ns()  # when it was made (monotonic ns)
        self.is_submitted = self.is_discarded = False
        self._calls = calls
        self._response: InferResponse | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        if final:
            self._calls.remove(self)
        if self.is_discarded:
            if response is not None:
                self.opened.confirm_sent()  # the called model may be blocked until its results are read
            return
        if self.call.is_decoupled:
            self.worker.send_result(self.call.number, response, final)
            return
        # A call for one response gets one message, even if the called model sends response and end separately.
        if response is not None:
            self._response = response
        if final:
            self.worker.send_result(self.call.number, self._response or _no_response(self.call), True)

    @property
    def can_deadlock(self) -> bool:
        """Whether it waits for an instance, and blocks its own."""
        return self.opened.is_waiting and self.is_blocking_instance

    @property
    def is_blocking_instance(self) -> bool:
        """Whether the calling instance can take no other request until the call is answered.

        A call for one response blocks it if its thread waits. Results of a decoupled call, and those awaited by
        coroutines, arrive while `execute` runs, so they block the instance only during a batch.
        """
        if self.call.is_decoupled or self.call.is_awaited:
            return (self.call.is_blocking or self.call.is_awaited) and bool(self.worker.batches)
        return self.call.is_blocking


class _WaitingCall(NamedTuple):
    began: int
    worker: Worker
    number: int
    model: str
    reject: Callable[[NaiadError], None]


def _waiting_call(pending: OpenCall) -> _WaitingCall:
    call = pending.call
    name = call.request.model_name
    return _WaitingCall(pending.began, pending.worker, call.number, name, pending.opened.reject_waiting)


class _WaitGraph:
    """What all blocked instances wait for at one moment."""

    def __init__(self, blocking: dict[CallId, Events], resources: Mapping[Worker, Events]) -> None:
        self._blocking = blocking
        self._resources = resources
        self._waits = self._by_worker(blocking)
        self.deadlocked = find_deadlocked(self._waits)  # the instances that only wait for each other
        self._freed: dict[Worker, set[Worker]] = {}

    def is_closed_by(self, caller: Worker, number: int) -> bool:
        """Whether a deadlock ends without a call: some only wait for instances that are deadlocked among themselves.

        Other calls of its guest may close the same cycle: they are looked at after it.
        """
        events = [servers for servers in self._blocking.get((caller, number), ()) if self._is_blocked(servers)]
        if not events:
            return False
        freed = self._freed.get(caller)
        if freed is None:
            others = {call: each for call, each in self._blocking.items() if call[0] is not caller}
            still = find_deadlocked(self._by_worker(others))
            freed = self._freed[caller] = self.deadlocked.difference(still)
        return any(not freed.isdisjoint(servers) for servers in events)

    def cycle(self, caller: Worker) -> list[Worker]:
        return deadlock_cycle(caller, self._waits, self.deadlocked)

    def _is_blocked(self, servers: Collection[Worker]) -> bool:
        return bool(servers) and self.deadlocked.issuperset(servers)

    def _by_worker(self, blocking: Mapping[CallId, Events]) -> Mapping[Worker, Events]:
        """For each blocked instance: the instances that could answer each of its calls, or free a resource for it."""
        waits: defaultdict[Worker, list[Collection[Worker]]] = defaultdict(list)
        for (worker, _), events in blocking.items():
            waits[worker] += events
        for worker, events in self._resources.items():
            waits[worker] += events
        return waits


class ModelCalls:
    """All calls in flight; implements the part of `GuestServices` that is about calls."""

    def __init__(self, registry: Registry | None = None) -> None:
        """No calls yet; *registry* finds what they go to, if their maker does not."""
        # How many calls were accepted since the start, by the names of the calling and the called model.
        self.made: Counter[tuple[str, str]] = Counter()
        # The names of models that calls named and that are not there, with those of the calling models.
        self.unknown: set[tuple[str, str]] = set()
        # Has other processes report what their guests wait for; calls its argument when they have.
        self.ask_again: Callable[[Callable[[], None]], None] = lambda then: then()
        # See `SharedRateLimiter.waits`; None without a rate limiter.
        self.resource_waits: Callable[[], Mapping[Worker, Events]] | None = None
        self._registry = registry
        self._calls: dict[Worker, dict[int, OpenCall]] = {}
        self._reported: dict[Worker, Mapping[int, Events]] = {}
        self._suspected: frozenset[CallId] | None = None  # blocking calls when other processes were asked again
        self._search: asyncio.TimerHandle | None = None

    def on_call(self, worker: Worker, call: ModelCall, accept: Callable[[OpenRequest], None] | None = None) -> None:
        """Submit a call; one that is rejected gets the error as its response.

        *accept* is what takes it, if that was found; its tensors are not in GPU memory then.
        """
        request = call.request
        name = request.model_name
        try:
            if accept is None:
                version = self._find(call)
                accept = version.accept
                if request.device is not None or call.uses_device:
                    _settle_device_use(worker, call, version)
            pending = OpenCall(self, worker, call)
            self._calls.setdefault(worker, {})[call.number] = pending
            try:
                accept(pending.opened)
            except NaiadError:
                self.remove(pending)
                pending.opened.release()  # its sink is the call
                if request.trace is not None:
                    request.trace.on_rejected()
                raise
        except NaiadError as error:
            if isinstance(error, UnknownModelError) and len(self.unknown) < _KEPT_UNKNOWN:
                self.unknown.add((worker.spec.load.model_name, name))
            worker.send_result(call.number, rejection(call, error), True)
            return
        pending.is_submitted = True
        self.made[worker.spec.load.model_name, name] += 1
        if pending.can_deadlock and self._may_be_blocked(pending.opened.waits()):
            if self._count() > _FEW_CALLS:
                self._search_later()
            else:
                self._reject_cycles([_waiting_call(pending)])

    def open_calls(self) -> Iterator[CallId]:
        return ((worker, number) for worker, calls in self._calls.items() for number in calls)

    def find(self, worker: Worker, number: int) -> OpenCall | None:
        return self._calls.get(worker, {}).get(number)

    def is_calling(self, worker: Worker) -> bool:
        return worker in self._reported or any(
            not pending.is_discarded for pending in self._calls.get(worker, {}).values()
        )

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None:
        pending = self.find(worker, number)
        if pending is not None:
            pending.opened.confirm_sent(count)

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None:
        for number in numbers:
            pending = self.find(worker, number)
            if pending is not None:
                pending.opened.cancel(drops_responses=False)

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None:
        for number in numbers:
            pending = self.find(worker, number)
            if pending is not None:
                pending.is_discarded = True
                pending.opened.drop_responses()

    def on_worker_exit(self, worker: Worker) -> None:
        self._reported.pop(worker, None)
        for pending in self._calls.pop(worker, {}).values():
            pending.is_discarded = True
            pending.opened.drop_responses()
            pending.opened.cancel(drops_responses=False)

    def remove(self, pending: OpenCall) -> None:
        calls = self._calls.get(pending.worker)
        if calls is not None:
            calls.pop(pending.call.number, None)
            if not calls:
                del self._calls[pending.worker]

    def _find(self, call: ModelCall) -> Target:
        request = call.request
        assert self._registry is not None
        version = self._registry.find(request.model_name, request.model_version)
        # While its guests restart, the call waits for the next one, as a client's request does.
        if version.reason:
            raise NotReadyError(
                f"Failed for execute the inference request. Model '{request.model_name}' is not ready. {version.reason}"
            )
        if version.config.decoupled and not call.is_decoupled:
            raise NaiadError(
                f"Model {request.model_name} is using the decoupled. The current BLS request call doesn't support "
                "models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                "'async_exec' calls for decoupled models.'"
            )
        return version

    # -- deadlocks ----------------------------------------------------------------------------------------------

    def on_ensemble_step_waiting(self, waits: Callable[[], Events]) -> None:
        """A step of an ensemble waits for *waits*: a model that called the ensemble may wait for itself.

        The step was submitted by the ensemble and not by the model, so `on_call` did not see that it waits.
        """
        if self._calls and self._may_be_blocked(waits()):
            self.on_call_waiting()

    def on_call_waiting(self) -> None:
        """Search for cycles, as it is not known which call waits now, or waits for fewer instances than before."""
        if self._count() > _FEW_CALLS:
            self._search_later()
        else:
            self._reject_cycles(self._waiting_calls())

    def on_waits_reported(self, waits: Mapping[Worker, Mapping[int, Events] | None]) -> None:
        """Another process has reported what its guests wait for.

        Args:
            waits: For each of these guests what its calls wait for that instances of its own process execute, by
                number; None for a guest that waits for nothing, and of which nothing else is known.
        """
        for worker, calls in waits.items():
            if calls is None:
                self._reported.pop(worker, None)
            else:
                self._reported[worker] = calls
        if any(calls is not None for calls in waits.values()):
            self._reject_cycles(self._waiting_calls())

    def blocking_calls(self) -> dict[CallId, Events]:
        found: dict[CallId, Events] = {
            (worker, number): pending.opened.waits()
            for worker, calls in self._calls.items()
            for number, pending in calls.items()
            if pending.is_blocking_instance
        }
        for worker, reported in self._reported.items():
            found.update({(worker, number): events for number, events in reported.items()})
        return found

    def _count(self) -> int:
        return sum(map(len, self._calls.values())) + sum(map(len, self._reported.values()))

    def _may_be_blocked(self, events: Events) -> bool:
        """Whether one of *events* can be caused only by instances that wait themselves."""
        waiting = (self._calls, self._reported, self._resource_waits())
        return any(servers and all(any(each in of for of in waiting) for each in servers) for servers in events)

    def _resource_waits(self) -> Mapping[Worker, Events]:
        return {} if self.resource_waits is None else self.resource_waits()

    def _search_later(self) -> None:
        if self._search is None:
            delay = self._count() * _SEARCH_DELAY_PER_CALL
            self._search = asyncio.get_running_loop().call_later(delay, self._on_search_due)

    def _on_search_due(self) -> None:
        self._search = None
        self._reject_cycles(self._waiting_calls())

    def _wait_graph(self, among: Container[CallId] | None = None) -> _WaitGraph:
        blocking = self.blocking_calls()
        if among is not None:
            blocking = {call: events for call, events in blocking.items() if call in among}
        return _WaitGraph(blocking, self._resource_waits())

    def _reject_cycles(self, waiting: Sequence[_WaitingCall], among: Container[CallId] | None = None) -> None:
        """Reject those of *waiting* that close cycles of instances that wait for each other.

        Without *among*, and if other processes have reported that guests wait, they are asked again first.
        """
        graph: _WaitGraph | None = None
        rejected_of: Worker | None = None
        # In a cycle, the call that was made last waits: the instance that it needs made its own call before.
        for each in sorted(waiting, key=lambda each: each.began, reverse=True):
            # As long as one caller has a further call in the cycle, all others stay deadlocked, unless the rejected
            # call has let others have a resource.
            if graph is None or rejected_of not in {None, each.worker}:
                graph, rejected_of = self._wait_graph(among), None
            if not graph.deadlocked:
                return
            if not graph.is_closed_by(each.worker, each.number):
                continue
            if among is None and self._reported:
                self._ask_again()
                return
            names = " -> ".join(f"'{worker.spec.name}'" for worker in graph.cycle(each.worker))
            error = NaiadError(
                f"Model {each.model} - Error when running inference: the call can never be answered, "
                f"as all instances that could wait on each other: {names}. Give one of these models more instances, or "
                "call from decoupled models whose execute returns meanwhile"
            )
            each.reject(error)
            rejected_of = each.worker
            if self.resource_waits is not None:
                graph = None

    def _waiting_calls(self) -> list[_WaitingCall]:
        pending_calls = [each for calls in self._calls.values() for each in calls.values() if each.is_submitted]
        return [_waiting_call(each) for each in pending_calls if each.can_deadlock]

    def _ask_again(self) -> None:
        if self._suspected is None:
            self._suspected = frozenset(self.blocking_calls())
            self.ask_again(self._on_asked_again)

    def _on_asked_again(self) -> None:
        among, self._suspected = self._suspected, None
        self._reject_cycles(self._waiting_calls(), among)
        self._reject_cycles(self._waiting_calls())  # of calls that have come meanwhile


def _caused(worker: Worker, call: ModelCall, sink: Sink) -> Sink:
    """Have a call carry on what the request that caused it carries; return the sink for its responses.

    The model says which request that is, by giving the call its trace. Otherwise the call is not part of a trace, as in
    the reference; but a chain of servers must not end there, or one that comes back would not be recognised.
    """
    if call.traced_by is None:
        chain = worker.propagated().get(CALL_CHAIN)
        call.request.propagated = NO_HEADERS if chain is None else {CALL_CHAIN: chain}
        return sink
    caller = worker.request_of(call.traced_by)
    if caller is None:
        return sink
    call.request.propagated = caller.propagated
    return sink if caller.trace is None else caller.trace.start_child(call.request, sink)


def _settle_device_use(worker: Worker, call: ModelCall, version: Target) -> None:
    """Have outputs of a call in GPU memory only where *version* allows it, and tell the caller about its next inputs.

    Inputs that are there stay, also if the version was loaded again since the last call, and takes them on the CPU now:
    its guest copies them.
    """
    request = call.request
    takes = bool(version.device & DEVICE_INPUTS)
    worker.tell_device_use(request.model_name, request.model_version, version.gpus if takes else None, takes=takes)
    use = request.device
    if use is not None and not version.device & DEVICE_OUTPUTS:
        request.device = DeviceUse(has_inputs=True) if use.has_inputs else None
    elif use is not None:
        use.readers = worker.gpus


def rejection(call: ModelCall, error: NaiadError) -> InferResponse:
    """The response to a call that was not accepted; the text is the reference's."""
    name = call.request.model_name
    message = f"Model {name} - Error when running inference: {error.message}"
    return InferResponse(name, -1, error=ModelError(message, code=Code.INTERNAL))


def _no_response(call: ModelCall) -> InferResponse:
    name = call.request.model_name
    return InferResponse(
        name, -1, error=ModelError(f"Model {name} - Error when running inference: it sent no response")
    )

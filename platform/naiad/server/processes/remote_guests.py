"""What the guests of replicas ask of the server: their processes pass it on to the coordinator, and the answers back.

So there is one registry of models' metrics, and one place that loads models.

A process executes a call itself if the called model has an idle instance there; the coordinator does not know of it.
Other calls go to the coordinator, as if the caller were a guest there. Deadlocks are looked for by the coordinator
alone. A deadlock lasts for ever, so a process reports only what has lasted for 50 ms: which guests wait for which
others, and whether a guest with an awaited or decoupled call still executes a batch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple, Protocol, TypeAlias, cast

from naiad.core.errors import ModelError, NaiadError
from naiad.engine.calls.model_calls import CallId, ModelCalls, rejection
from naiad.engine.calls.services import ModelServices
from naiad.engine.open_request import Events, OpenRequest
from naiad.guests.calls import ModelCall
from naiad.guests.worker import Worker
from naiad.protocol.inference import InferRequest, InferResponse, Sink, SubmittedRequest, Trace
from naiad.server.processes.messages import GuestCaller
from naiad.server.processes.request_session import RequestTarget
from naiad.server.processes.traces import RemoteTrace

# A call that was open at two looks so far apart is reported. Most calls take less, and are never reported.
_LASTING_SECONDS = 0.05


Notify: TypeAlias = Callable[..., None]  # see `RemoteCalls.notify`


class Routes(Protocol):
    """Where calls of a process's guests go, as far as the process knows, and what else they ask for."""

    @property
    def notify(self) -> Notify:
        """Calls a service of the coordinator that has no result."""

    def replica_for(self, call: ModelCall) -> RequestTarget | None:
        """What executes a call without the coordinator: an idle instance here; None without one."""

    def send_call(self, opened: OpenRequest, caller: GuestCaller) -> None:
        """Send a call to the coordinator. Raises `NaiadError` if that is not possible."""


class GuestWaits(NamedTuple):
    """What a guest waits for, as its process reports it."""

    # For each of its calls that block it and that the coordinator does not have, by number, what it waits for: for each
    # event the numbers of the guests that could cause it; 0 for one that has asked for nothing so far.
    calls: Mapping[int, Sequence[Sequence[int]]]
    # Whether it executes a batch, where that decides if it is blocked by a call that the coordinator executes.
    is_executing: bool


class _RelayedCall:
    """A call that the coordinator executes; sends its results to the guest, if that still waits for them."""

    __slots__ = ("_relay", "_worker", "blocks_batch", "number", "opened")

    def __init__(self, relay: GuestRelay, worker: Worker, call: ModelCall) -> None:
        self._relay = relay
        self._worker = worker
        self.number = call.number
        self.opened = OpenRequest(call.request, self)
        self.blocks_batch = call.is_decoupled or call.is_awaited  # it blocks the guest only while that executes a batch

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        if self._relay.is_relayed(self._worker, self.number, ends=final):
            self._worker.send_result(self.number, response, final)


class GuestRelay:
    """Implements `naiad.guests.worker.GuestServices` for the guests of a process's replicas."""

    def __init__(self, engine: Routes) -> None:
        self._engine = engine
        self._own = ModelCalls()
        self._numbers = itertools.count(1)
        self._guests: dict[int, Worker] = {}
        self._known: dict[Worker, int] = {}
        # Calls that the coordinator executes, as long as the model waits for their results.
        self._relayed: dict[CallId, _RelayedCall] = {}
        self._loop = asyncio.get_running_loop()
        self._next_look: asyncio.TimerHandle | None = None
        self._open_before: frozenset[CallId] = frozenset()  # calls at the last look
        self._lasting: frozenset[CallId] = frozenset()  # those of them that were open at the look before, too
        self._reported: Mapping[int, GuestWaits] = {}
        self.services = {"reply": self._on_reply}  # what the coordinator calls

    @property
    def made(self) -> Counter[tuple[str, str]]:
        """How many calls this process has executed itself, by the names of the calling and the called model."""
        return self._own.made

    # -- calls ----------------------------------------------------------------------------------------------------

    def on_call(self, worker: Worker, call: ModelCall) -> None:
        caller = _caller_of(worker, call)
        replica = None if _needs_coordinator(call, caller) else self._engine.replica_for(call)
        if replica is None:
            self._relay(worker, call, caller)
        else:
            self._own.on_call(worker, call, replica.accept)
        if self._next_look is None:
            self._next_look = self._loop.call_later(_LASTING_SECONDS, self._look)

    def _relay(self, worker: Worker, call: ModelCall, caller: InferRequest | None) -> None:
        if call.request.device is not None and call.request.device.has_inputs:  # a guest sends none unless it was told
            error = ModelError(f"Model {call.request.model_name} - Error when running inference: inputs in GPU memory")
            worker.send_result(call.number, InferResponse(call.request.model_name, -1, error=error), True)
            return
        call.request.device = None
        trace = None if caller is None else caller.trace
        made_by = GuestCaller(
            guest=self._number(worker),
            number=call.number,
            is_decoupled=call.is_decoupled,
            is_blocking=call.is_blocking,
            is_awaited=call.is_awaited,
            traced_by=call.traced_by,
            headers=dict(worker.propagated()),
            propagated=None if caller is None else dict(caller.propagated),
            traced=trace.number if isinstance(trace, RemoteTrace) and trace.context is not None else None,
        )
        relayed = self._relayed[worker, call.number] = _RelayedCall(self, worker, call)
        try:
            self._engine.send_call(relayed.opened, made_by)
        except NaiadError as error:
            del self._relayed[worker, call.number]
            worker.send_result(call.number, rejection(call, error), True)

    def is_relayed(self, worker: Worker, number: int, *, ends: bool) -> bool:
        """Whether the guest still waits for the results of a call, which *ends* with the next one."""
        found = self._relayed.pop((worker, number), None) if ends else self._relayed.get((worker, number))
        return found is not None

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None:
        relayed = self._relayed.get((worker, number))
        if relayed is not None:
            relayed.opened.confirm_sent(count)
        else:
            self._own.on_results_consumed(worker, number, count)

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (worker, number) in self._relayed:
                self._relayed[worker, number].opened.cancel(drops_responses=False)
        self._own.on_calls_cancelled(worker, numbers)

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None:
        for number in numbers:
            relayed = self._relayed.pop((worker, number), None)
            if relayed is not None:
                relayed.opened.drop_responses()
        self._own.on_results_discarded(worker, numbers)

    def is_calling(self, worker: Worker) -> bool:
        return any(caller is worker for caller, _ in self._relayed) or self._own.is_calling(worker)

    # -- what calls wait for --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Report calls that last, and look again later while there are calls."""
        now = frozenset(self._own.open_calls()) | self._relayed.keys()
        self._lasting, self._open_before = now & self._open_before, now
        self.report_waits()
        self._next_look = self._loop.call_later(_LASTING_SECONDS, self._look) if now else None

    def report_waits(self) -> None:
        """Report what guests wait for, in calls that last, if that has changed since the last report."""
        report = self._waits() if self._lasting else {}
        if report != self._reported:
            self._reported = report
            self._engine.notify("guest_waits", report)

    def _waits(self) -> Mapping[int, GuestWaits]:
        blocking = self._own.blocking_calls()
        calls: dict[Worker, list[int]] = {}
        executing = set()
        for worker, number in self._lasting:
            if (worker, number) in blocking:
                calls.setdefault(worker, []).append(number)
            relayed = self._relayed.get((worker, number))
            if relayed is not None and relayed.blocks_batch and worker.batches:
                executing.add(worker)
        numbers = {worker: self._number(worker) for worker in {*calls, *executing}}
        return {
            number: GuestWaits(
                {call: self._numbered(blocking[worker, call]) for call in calls.get(worker, ())},
                worker in executing,
            )
            for worker, number in numbers.items()
        }

    def _numbered(self, events: Events) -> Sequence[Sequence[int]]:
        return [[self._known.get(each, 0) for each in guests] for guests in events]

    # -- what else models ask for ---------------------------------------------------------------------------------

    def on_query(self, worker: Worker, number: int, what: str, fields: Mapping[str, str]) -> None:
        self._engine.notify("guest_query", self._number(worker), number, what, dict(fields), worker.is_starting)

    def on_notification(self, worker: Worker, what: str, fields: Mapping[str, str]) -> None:
        self._engine.notify("guest_notification", self._number(worker), what, dict(fields))

    def on_worker_exit(self, worker: Worker) -> None:
        self._own.on_worker_exit(worker)
        for call in [call for call in self._relayed if call[0] is worker]:
            del self._relayed[call]
        number = self._known.pop(worker, None)
        if number is not None:
            del self._guests[number]
            self._engine.notify("guest_exit", number)

    def _number(self, worker: Worker) -> int:
        number = self._known.get(worker)
        if number is None:
            number = self._known[worker] = next(self._numbers)
            self._guests[number] = worker
            spec = worker.spec
            self._engine.notify("guest", number, spec.name, spec.load.model_name, spec.load_number)
        return number

    def _on_reply(self, guest: int, number: int, error: NaiadError | None, text: str) -> None:
        worker = self._guests.get(guest)
        if worker is not None:
            worker.reply(number, error=error, text=text)


def _caller_of(worker: Worker, call: ModelCall) -> InferRequest | None:
    """The request that caused a call, if the guest has told."""
    return None if call.traced_by is None else worker.request_of(call.traced_by)


def _needs_coordinator(call: ModelCall, caller: InferRequest | None) -> bool:
    """Whether a call needs what the coordinator has: traces, GPU memory, the order of a sequence's requests."""
    request = call.request
    if request.device is not None or call.uses_device or request.correlation_id:
        return True
    trace = None if caller is None else caller.trace
    return isinstance(trace, RemoteTrace) and trace.context is not None


class RemoteGuest:
    """A guest of another process, with what the coordinator's services use of a `Worker`."""

    gpus = None  # its calls have no tensors in GPU memory
    is_starting: bool  # whether its model is being loaded; as it was at the guest's last query

    def __init__(self, notify: Notify, number: int, name: str, model: str, load: int) -> None:
        self.load_number = load  # of its version's load
        # Not empty if a decoupled or awaited call of it lasts, and its process has reported that it executes a batch.
        # Without a report, such a call counts as one that does not block it.
        self.batches: Sequence[None] = ()
        self.spec = SimpleNamespace(name=name, load=SimpleNamespace(model_name=model))
        self.headers: Mapping[str, str] = {}
        self.caller: InferRequest | None = None
        self.results: dict[int, Sink] = {}  # by the numbers of its calls
        self._notify = notify
        self._number = number

    def send_result(self, number: int, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - as `Worker` has it
        sink = self.results.pop(number) if final else self.results[number]
        sink.send(response, final)

    def end_calls(self, numbers: Collection[int]) -> None:
        """No result of these calls is passed on any more: end them on the link."""
        for number in numbers:
            sink = self.results.pop(number, None)
            if sink is not None:
                sink.send(None, True)

    def reply(self, number: int, *, error: NaiadError | None = None, text: str = "") -> None:
        self._notify("reply", self._number, number, error, text)

    def propagated(self) -> Mapping[str, str]:
        """See `Worker`; as it was at the guest's last call."""
        return self.headers

    def request_of(self, _: int) -> InferRequest | None:
        """The request that caused the guest's last call, without its tensors."""
        return self.caller

    def tell_device_use(self, name: str, version: int, gpus: frozenset[bytes] | None, *, takes: bool) -> None:
        """Nothing: tensors in GPU memory do not pass between processes of the server."""


def _as_worker(guest: RemoteGuest) -> Worker:
    return cast("Worker", guest)  # it has what the services use of one


class _CallOfGuest:
    """Implements `SubmittedRequest`: a call of a guest of another process."""

    def __init__(self, services: ModelServices, guest: RemoteGuest, number: int) -> None:
        self._services = services
        self._guest = guest
        self._worker = _as_worker(guest)
        self._number = number

    def cancel(self, *, drops_responses: bool = True) -> None:
        self._services.on_calls_cancelled(self._worker, [self._number])
        if drops_responses:
            self.drop_responses()

    def drop_responses(self) -> None:
        self._services.on_results_discarded(self._worker, [self._number])
        self._guest.end_calls([self._number])

    def confirm_sent(self, count: int = 1) -> None:
        self._services.on_results_consumed(self._worker, self._number, count)


class RemoteGuests:
    """The guests of one process's replicas, as the coordinator sees them."""

    def __init__(
        self,
        services: ModelServices,
        notify: Notify,
        find_trace: Callable[[int], Trace | None],
    ) -> None:
        """*find_trace* finds the trace of a request that was sent to the process, by its number on the link."""
        self._services = services
        self._notify = notify
        self._find_trace = find_trace
        self._guests: dict[int, RemoteGuest] = {}
        self._by_instance: dict[tuple[int, str], RemoteGuest] = {}  # the latest guest of each, by load and instance
        self._waiting: frozenset[int] = frozenset()
        # What the process calls.
        self.services: dict[str, Callable[..., None]] = {
            "guest": self._on_guest,
            "guest_waits": self._on_waits,
            "guest_query": self._on_query,
            "guest_notification": self._on_notification,
            "guest_exit": self._on_exit,
        }

    @property
    def are_waiting(self) -> bool:
        """Whether the process has reported last that guests wait."""
        return bool(self._waiting)

    def _on_guest(self, number: int, instance: str, model: str, load: int) -> None:
        made = self._guests[number] = RemoteGuest(self._notify, number, instance, model, load)
        self._by_instance[load, instance] = made

    def _on_query(self, guest: int, number: int, what: str, fields: Mapping[str, str], is_starting: bool) -> None:  # noqa: FBT001 - by its position, from the link
        remote = self._guests[guest]
        remote.is_starting = is_starting
        self._services.on_query(_as_worker(remote), number, what, fields)

    def _on_notification(self, guest: int, what: str, fields: Mapping[str, str]) -> None:
        self._services.on_notification(_as_worker(self._guests[guest]), what, fields)

    def _on_exit(self, guest: int) -> None:
        remote = self._guests.pop(guest)
        if self._by_instance.get((remote.load_number, remote.spec.name)) is remote:
            del self._by_instance[remote.load_number, remote.spec.name]
        self._services.on_worker_exit(_as_worker(remote))
        remote.end_calls(list(remote.results))

    def on_call(self, caller: GuestCaller, request: InferRequest, sink: Sink) -> SubmittedRequest | None:
        """Submit a call of a guest; None if the guest has exited meanwhile."""
        remote = self._guests.get(caller.guest)
        if remote is None:
            sink.send(None, True)
            return None
        trace = None if caller.traced is None else self._find_trace(caller.traced)
        propagated = caller.propagated
        remote.headers = caller.headers
        remote.caller = None if propagated is None else InferRequest("", -1, (), propagated=propagated, trace=trace)
        remote.results[caller.number] = sink
        flags = caller.is_decoupled, caller.is_blocking, caller.is_awaited
        self._services.on_call(_as_worker(remote), ModelCall(caller.number, request, *flags, caller.traced_by))
        return _CallOfGuest(self._services, remote, caller.number)

    def _on_waits(self, report: Mapping[int, GuestWaits]) -> None:
        """The process has reported what its guests wait for now; what it reported before has ended."""
        changes: dict[Worker, Mapping[int, Events] | None] = {}
        for number in {*self._waiting, *report}:
            remote, waits = self._guests.get(number), report.get(number)
            if remote is not None:
                remote.batches = (None,) if waits is not None and waits.is_executing else ()
                calls = None
                if waits is not None:
                    calls = {call: self._workers(events) for call, events in waits.calls.items()}
                changes[_as_worker(remote)] = calls
        self._waiting = frozenset(report)
        self._services.calls.on_waits_reported(changes)

    def _workers(self, waits: Sequence[Sequence[int]]) -> Events:
        """The guests that could cause each event; none for an event if one of them waits for nothing."""
        found: list[Collection[Worker]] = []
        for numbers in waits:
            guests: list[Worker] = []
            for number in numbers:
                known = self._guests.get(number)
                if known is None:
                    guests.clear()
                    break
                guests.append(_as_worker(known))
            found.append(guests)
        return found

    def of(self, load: int, instance: str) -> Worker:
        """The guest of an instance, to look for deadlocks; one that has asked for nothing waits for nothing."""
        known = self._by_instance.get((load, instance))
        return _as_worker(known or RemoteGuest(self._notify, 0, instance, "", load))

    def close(self) -> None:
        guests, self._guests = list(self._guests.values()), {}
        self._by_instance.clear()
        for remote in guests:
            self._services.on_worker_exit(_as_worker(remote))

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
from typing import Any, NamedTuple, Protocol, cast

from naiad.core.errors import ModelError, NaiadError
from naiad.engine.calls.model_calls import CallId, ModelCalls, rejection
from naiad.engine.calls.services import ModelServices
from naiad.engine.open_request import Events, OpenRequest
from naiad.engine.served import Target
from naiad.guests.calls import ModelCall
from naiad.guests.worker import Worker
from naiad.protocol.inference import InferRequest, InferResponse, Sink, SubmittedRequest, Trace
from naiad.server.processes.messages import ErrorFields, GuestCaller, error_fields, error_of
from naiad.server.processes.remote_trace import RemoteTrace

# A call that was open at two looks so far apart is reported. Most calls take less, and are never reported.
_LASTING_SECONDS = 0.05


class Notify(Protocol):
    """Sends something to the process at the other end of the link."""

    def __call__(self, name: str, *arguments: Any) -> None:
        """Send *arguments*, which can be pickled."""


class Routes(Protocol):
    """Where calls of a process's guests go, as far as the process knows."""

    def target_of(self, call: ModelCall) -> Target | None:
        """What a call goes to without the coordinator: an idle instance here; None without one."""

    def note_call(self, target: Target) -> None:
        """A call was submitted to *target*."""

    def submit_call(self, opened: OpenRequest, caller: GuestCaller) -> None:
        """Send a call to the coordinator. Raises `NaiadError` if that is not possible."""


class GuestWaits(NamedTuple):
    """What a guest waits for, as its process reports it."""

    # For each of its calls that block it and that the coordinator does not have, by number, what it waits for: for each
    # event the numbers of the guests that could cause it; 0 for one that has asked for nothing so far.
    calls: Mapping[int, Sequence[Sequence[int]]]
    # Whether it executes a batch, where that decides if it is blocked by a call that the coordinator executes.
    is_executing: bool


class _RelayedCall(NamedTuple):
    """A call that the coordinator executes."""

    opened: OpenRequest
    blocks_batch: bool  # whether it blocks the guest only while that executes a batch


class _Results:
    """Sends the results of a call that the coordinator executes to its guest, if that still waits for them."""

    __slots__ = ("_call", "_relay", "_worker")

    def __init__(self, relay: GuestRelay, worker: Worker, call: int) -> None:
        self._relay = relay
        self._worker = worker
        self._call = call

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        self._relay.on_result(self._worker, self._call, response, final=final)


class GuestRelay:
    """Implements `naiad.guests.worker.GuestServices` for the guests of a process's replicas."""

    def __init__(self, notify: Notify, routes: Routes) -> None:
        self._notify = notify
        self._routes = routes
        self._own = ModelCalls()
        self._numbers = itertools.count(1)
        self._guests: dict[int, Worker] = {}
        self._known: dict[Worker, int] = {}
        # Calls that the coordinator executes, as long as the model waits for their results.
        self._relayed: dict[Worker, dict[int, _RelayedCall]] = {}
        self._loop = asyncio.get_running_loop()
        self._next_look: asyncio.TimerHandle | None = None
        self._open_before: frozenset[CallId] = frozenset()  # calls at the last look
        self._lasting: frozenset[CallId] = frozenset()  # those of them that were open at the look before, too
        self._reported: Mapping[int, GuestWaits] = {}

    @property
    def made(self) -> Counter[tuple[str, str]]:
        """How many calls this process has executed itself, by the names of the calling and the called model."""
        return self._own.made

    def on_notice(self, name: str, arguments: Sequence[Any]) -> bool:
        """Handle what the coordinator has sent for a guest; whether it was that."""
        if name != "reply":
            return False
        self._on_reply(*arguments)
        return True

    def close(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()

    # -- calls ----------------------------------------------------------------------------------------------------

    def on_call(self, worker: Worker, call: ModelCall) -> None:
        caller = _caller_of(worker, call)
        target = None if _needs_coordinator(call, caller) else self._routes.target_of(call)
        if target is None:
            self._relay(worker, call, caller)
        else:
            self._own.on_call(worker, call, target)
            self._routes.note_call(target)
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
        calls = self._relayed.setdefault(worker, {})
        opened = OpenRequest(call.request, _Results(self, worker, call.number))
        calls[call.number] = _RelayedCall(opened, call.is_decoupled or call.is_awaited)
        try:
            self._routes.submit_call(opened, made_by)
        except NaiadError as error:
            self._forget_relayed(worker, call.number)
            worker.send_result(call.number, rejection(call, error), True)

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None:
        relayed = self._relayed.get(worker, {}).get(number)
        if relayed is not None:
            relayed.opened.confirm_sent(count)
        else:
            self._own.on_results_consumed(worker, number, count)

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None:
        for relayed in self._relayed_of(worker, numbers).values():
            relayed.opened.cancel(drops_responses=False)
        self._own.on_calls_cancelled(worker, numbers)

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None:
        for number, relayed in self._relayed_of(worker, numbers).items():
            relayed.opened.drop_responses()
            self._forget_relayed(worker, number)
        self._own.on_results_discarded(worker, numbers)

    def is_calling(self, worker: Worker) -> bool:
        return worker in self._relayed or self._own.is_calling(worker)

    def _relayed_of(self, worker: Worker, numbers: Sequence[int]) -> Mapping[int, _RelayedCall]:
        calls = self._relayed.get(worker, {})
        return {number: calls[number] for number in numbers if number in calls}

    def _forget_relayed(self, worker: Worker, number: int) -> None:
        calls = self._relayed.get(worker)
        if calls is not None:
            calls.pop(number, None)
            if not calls:
                del self._relayed[worker]

    def on_result(self, worker: Worker, number: int, response: InferResponse | None, *, final: bool) -> None:
        if number not in self._relayed.get(worker, ()):
            return  # the guest has exited, or does not want it any more
        if final:
            self._forget_relayed(worker, number)
        worker.send_result(number, response, final)

    # -- what calls wait for --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Report calls that last, and look again later while there are calls."""
        now = frozenset(self._own.open_calls()) | {
            (worker, number) for worker, calls in self._relayed.items() for number in calls
        }
        self._lasting, self._open_before = now & self._open_before, now
        self.report_waits()
        self._next_look = self._loop.call_later(_LASTING_SECONDS, self._look) if now else None

    def report_waits(self) -> None:
        """Report what guests wait for, in calls that last, if that has changed since the last report."""
        report = self._waits() if self._lasting else {}
        if report != self._reported:
            self._reported = report
            self._notify("waits", report)

    def _waits(self) -> Mapping[int, GuestWaits]:
        blocking = self._own.blocking_calls()
        calls: dict[Worker, list[int]] = {}
        executing = set()
        for worker, number in self._lasting:
            if (worker, number) in blocking:
                calls.setdefault(worker, []).append(number)
            relayed = self._relayed.get(worker, {}).get(number)
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
        self._notify("guest_query", self._number(worker), number, what, dict(fields), worker.is_starting)

    def on_notification(self, worker: Worker, what: str, fields: Mapping[str, str]) -> None:
        self._notify("guest_notified", self._number(worker), what, dict(fields))

    def on_worker_exit(self, worker: Worker) -> None:
        self._own.on_worker_exit(worker)
        self._relayed.pop(worker, None)
        number = self._known.pop(worker, None)
        if number is not None:
            del self._guests[number]
            self._notify("guest_exit", number)

    def _number(self, worker: Worker) -> int:
        number = self._known.get(worker)
        if number is None:
            number = self._known[worker] = next(self._numbers)
            self._guests[number] = worker
            spec = worker.spec
            self._notify("guest", number, spec.name, spec.load.model_name, spec.load_number)
        return number

    def _on_reply(self, guest: int, number: int, error: ErrorFields | None, text: str) -> None:
        worker = self._guests.get(guest)
        if worker is not None:
            worker.reply(number, error=None if error is None else error_of(error), text=text)


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


class _RemoteLoad(NamedTuple):
    model_name: str


class _RemoteSpec(NamedTuple):
    name: str
    load: _RemoteLoad


class RemoteGuest:
    """A guest of another process, with what the coordinator's services use of a `Worker`."""

    gpus = None  # its calls have no tensors in GPU memory

    def __init__(self, notify: Notify, number: int, name: str, model: str, load: int) -> None:
        self.load_number = load  # of its version's load
        # Not empty if a decoupled or awaited call of it lasts, and its process has reported that it executes a batch.
        # Without a report, such a call counts as one that does not block it.
        self.batches: Sequence[None] = ()
        self.spec = _RemoteSpec(name, _RemoteLoad(model))
        self.is_starting = False  # whether its model is being loaded
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
        self._notify("reply", self._number, number, None if error is None else error_fields(error), text)

    def propagated(self) -> Mapping[str, str]:
        """See `Worker`; as it was at the guest's last call."""
        return self.headers

    def request_of(self, _: int) -> InferRequest | None:
        """The request that caused the guest's last call, without its tensors."""
        return self.caller

    def tell_device_use(self, name: str, version: int, gpus: frozenset[bytes] | None, *, takes: bool) -> None:
        """Nothing: tensors in GPU memory do not pass between processes of the server."""


class _CallOfGuest:
    """Implements `SubmittedRequest`: a call of a guest of another process."""

    def __init__(self, services: ModelServices, guest: RemoteGuest, number: int) -> None:
        self._services = services
        self._guest = guest
        self._worker = cast("Worker", guest)  # it has what the services use of one
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

    @property
    def are_waiting(self) -> bool:
        """Whether the process has reported last that guests wait."""
        return bool(self._waiting)

    def on_notice(self, name: str, arguments: Sequence[Any]) -> bool:
        """Handle what the process has sent for a guest; whether it was that."""
        if name == "waits":
            self._on_waits(*arguments)
            return True
        if name == "guest":
            number, instance, model, load = arguments
            made = self._guests[number] = RemoteGuest(self._notify, number, instance, model, load)
            self._by_instance[load, instance] = made
            return True
        if not name.startswith("guest_"):
            return False
        guest, *rest = arguments
        remote = self._guests[guest]
        worker = cast("Worker", remote)  # it has what the services use of one
        services = self._services
        if name == "guest_query":
            *query, remote.is_starting = rest
            services.on_query(worker, *query)
        elif name == "guest_notified":
            services.on_notification(worker, *rest)
        elif name == "guest_exit":
            del self._guests[guest]
            if self._by_instance.get((remote.load_number, remote.spec.name)) is remote:
                del self._by_instance[remote.load_number, remote.spec.name]
            services.on_worker_exit(worker)
            remote.end_calls(list(remote.results))
        return True

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
        worker = cast("Worker", remote)  # it has what the services use of one
        self._services.on_call(
            worker,
            ModelCall(
                caller.number, request, caller.is_decoupled, caller.is_blocking, caller.is_awaited, caller.traced_by
            ),
        )
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
                changes[cast("Worker", remote)] = calls
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
                guests.append(cast("Worker", known))
            found.append(guests)
        return found

    def of(self, load: int, instance: str) -> Worker:
        """The guest of an instance, to look for deadlocks; one that has asked for nothing waits for nothing."""
        known = self._by_instance.get((load, instance))
        return cast("Worker", known or RemoteGuest(self._notify, 0, instance, "", load))

    def close(self) -> None:
        guests, self._guests = list(self._guests.values()), {}
        self._by_instance.clear()
        for remote in guests:
            self._services.on_worker_exit(cast("Worker", remote))

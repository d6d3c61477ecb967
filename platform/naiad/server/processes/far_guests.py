"""What the guests of branches ask of the server: their processes pass it on to the coordinator, and the answers back.

So there is one registry of models' metrics, one place that loads models, and calls go to the coordinator's instances,
as if the caller were a guest of the coordinator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from naiad.core.errors import ModelError, NaiadError
from naiad.guests.calls import ModelCall
from naiad.guests.worker import GuestServices, Worker
from naiad.protocol.inference import InferRequest, InferResponse
from naiad.server.processes.messages import ErrorFields, error_fields, error_of
from naiad.server.processes.plain_messages import PlainResponse, plain_request, plain_response, response_of

__all__ = ["FarGuests", "GuestRelay"]


class Tell(Protocol):
    """Sends something to the process at the other end of the link."""

    def __call__(self, name: str, *arguments: Any) -> None:
        """Send *arguments*, which can be pickled."""


class GuestRelay:
    """Implements `naiad.guests.worker.GuestServices` for the guests of a process's branches."""

    def __init__(self, tell: Tell) -> None:
        """A relay; *tell* sends to the coordinator."""
        self._tell = tell
        self._numbers = itertools.count(1)
        self._guests: dict[int, Worker] = {}
        self._known: dict[Worker, int] = {}
        self._calls: dict[int, set[int]] = {}  # those whose results a guest waits for
        self._handlers: Mapping[str, Callable[..., None]] = {"result": self._on_result, "reply": self._on_reply}

    def on_told(self, name: str, arguments: Sequence[Any]) -> bool:
        """Handle what the coordinator has sent for a guest; whether it was that."""
        handler = self._handlers.get(name)
        if handler is not None:
            handler(*arguments)
        return handler is not None

    def on_call(self, worker: Worker, call: ModelCall) -> None:
        """See `GuestServices`, as for the methods below."""
        if call.request.device is not None and call.request.device.has_inputs:  # a guest sends none unless it was told
            error = ModelError(f"Model {call.request.model_name} - Error when running inference: inputs in GPU memory")
            worker.send_result(call.number, InferResponse(call.request.model_name, -1, error=error), True)
            return
        number = self._number(worker)
        self._calls.setdefault(number, set()).add(call.number)
        caller = None if call.traced_by is None else worker.request_of(call.traced_by)
        plain = call._replace(request=plain_request(call.request), uses_device=False)
        headers = dict(worker.propagated())
        self._tell("guest_call", number, plain, headers, None if caller is None else dict(caller.propagated))

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None:
        """See `GuestServices`."""
        self._tell("guest_consumed", self._number(worker), number, count)

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None:
        """See `GuestServices`."""
        self._tell("guest_cancelled", self._number(worker), list(numbers))

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None:
        """See `GuestServices`."""
        guest = self._number(worker)
        self._calls.get(guest, set()).difference_update(numbers)
        self._tell("guest_discarded", guest, list(numbers))

    def is_calling(self, worker: Worker) -> bool:
        """See `GuestServices`."""
        number = self._known.get(worker)
        return number is not None and bool(self._calls.get(number))

    def on_query(self, worker: Worker, number: int, what: str, fields: Mapping[str, str]) -> None:
        """See `GuestServices`."""
        self._tell("guest_query", self._number(worker), number, what, dict(fields), worker.is_starting)

    def on_notification(self, worker: Worker, what: str, fields: Mapping[str, str]) -> None:
        """See `GuestServices`."""
        self._tell("guest_notified", self._number(worker), what, dict(fields))

    def on_worker_exit(self, worker: Worker) -> None:
        """See `GuestServices`."""
        number = self._known.pop(worker, None)
        if number is not None:
            del self._guests[number]
            self._calls.pop(number, None)
            self._tell("guest_exit", number)

    def _number(self, worker: Worker) -> int:
        number = self._known.get(worker)
        if number is None:
            number = self._known[worker] = next(self._numbers)
            self._guests[number] = worker
            spec = worker.spec
            self._tell("guest", number, spec.name, spec.load.model_name, spec.load_number)
        return number

    def _on_result(self, guest: int, number: int, response: PlainResponse | None, final: bool) -> None:  # noqa: FBT001 - a message
        worker = self._guests.get(guest)
        if final:
            self._calls.get(guest, set()).discard(number)
        if worker is not None:  # else it has exited meanwhile
            worker.send_result(number, response_of(response), final)

    def _on_reply(self, guest: int, number: int, error: ErrorFields | None, text: str) -> None:
        worker = self._guests.get(guest)
        if worker is not None:
            worker.reply(number, error=None if error is None else error_of(error), text=text)


class _FarLoad(NamedTuple):
    model_name: str


class _FarSpec(NamedTuple):
    name: str
    load: _FarLoad


class FarGuest:
    """A guest of another process, with what the coordinator's services use of a `Worker`.

    Attributes:
        spec: Its name, and its model's.
        is_starting: Whether its model is being loaded.
        load_number: Number of its version's load.
        batches: None: a decoupled or awaited call of it counts as one that does not block it, since nobody here knows
            whether it still executes a batch.
        gpus: None: its calls have no tensors in GPU memory.
    """

    batches: tuple[()] = ()
    gpus = None

    def __init__(self, tell: Tell, number: int, name: str, model: str, load: int) -> None:
        self.load_number = load
        self.spec = _FarSpec(name, _FarLoad(model))
        self.is_starting = False
        self.headers: Mapping[str, str] = {}
        self.caller: InferRequest | None = None
        self._tell = tell
        self._number = number

    def send_result(self, number: int, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - as `Worker` has it
        """See `Worker`."""
        self._tell("result", self._number, number, plain_response(response), final)

    def reply(self, number: int, *, error: NaiadError | None = None, text: str = "") -> None:
        """See `Worker`."""
        self._tell("reply", self._number, number, None if error is None else error_fields(error), text)

    def propagated(self) -> Mapping[str, str]:
        """See `Worker`; as it was at the guest's last call."""
        return self.headers

    def request_of(self, _: int) -> InferRequest | None:
        """The request that caused the guest's last call, without its tensors."""
        return self.caller

    def tell_device_use(self, name: str, version: int, gpus: frozenset[bytes] | None, *, takes: bool) -> None:
        """Nothing: tensors in GPU memory do not pass between processes of the server."""


class FarGuests:
    """The guests of one process's branches, as the coordinator sees them."""

    def __init__(self, services: GuestServices, tell: Tell) -> None:
        """No guests yet.

        Args:
            services: What models may use of the server.
            tell: Sends to the process.
        """
        self._services = services
        self._tell = tell
        self._guests: dict[int, FarGuest] = {}

    def on_told(self, name: str, arguments: Sequence[Any]) -> bool:
        """Handle what the process has sent for a guest; whether it was that."""
        if name == "guest":
            number, instance, model, load = arguments
            self._guests[number] = FarGuest(self._tell, number, instance, model, load)
            return True
        if not name.startswith("guest_"):
            return False
        guest, *rest = arguments
        far = self._guests[guest]
        worker = cast("Worker", far)  # it has what the services use of one
        services = self._services
        if name == "guest_call":
            call, far.headers, propagated = rest
            far.caller = None if propagated is None else InferRequest("", -1, (), propagated=propagated)
            services.on_call(worker, call)
        elif name == "guest_query":
            *query, far.is_starting = rest
            services.on_query(worker, *query)
        elif name == "guest_notified":
            services.on_notification(worker, *rest)
        elif name == "guest_consumed":
            services.on_results_consumed(worker, *rest)
        elif name == "guest_cancelled":
            services.on_calls_cancelled(worker, *rest)
        elif name == "guest_discarded":
            services.on_results_discarded(worker, *rest)
        elif name == "guest_exit":
            del self._guests[guest]
            services.on_worker_exit(worker)
        return True

    def of(self, load: int, instance: str) -> Worker:
        """The guest of an instance, to look for deadlocks; one that has asked for nothing waits for nothing."""
        found = [each for each in self._guests.values() if (each.load_number, each.spec.name) == (load, instance)]
        return cast("Worker", found[-1] if found else FarGuest(self._tell, 0, instance, "", load))

    def close(self) -> None:
        """The process has exited, and its guests with it."""
        guests, self._guests = list(self._guests.values()), {}
        for far in guests:
            self._services.on_worker_exit(cast("Worker", far))

"""Calls of models to other models (business logic scripting, BLS).

A call is submitted like any other request; its sink sends the responses to the calling guest. Every call is submitted
with `needs_idle`: only an instance that holds no other request may take it. Behind a request whose model calls back
into the caller it would wait forever.

A call that its instance waits for may close a cycle of instances that wait for each other. It is rejected with an error
that names the cycle; the reference hangs. Calls by other threads than the main one are not looked at: only the guest
could know what its threads wait for. Other texts are the reference's (PB src/request_executor.cc).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from naiad.config.model.ensemble import ENSEMBLE_PLATFORM
from naiad.core.errors import Code, ModelError, NaiadError, NotReadyError
from naiad.engine.registry import Registry
from naiad.engine.scheduling.deadlock import deadlock_cycle
from naiad.engine.served import Target
from naiad.guests.calls import ModelCall
from naiad.guests.worker import Worker
from naiad.protocol.device_bytes import DeviceUse
from naiad.protocol.inference import CALL_CHAIN, DEVICE_INPUTS, DEVICE_OUTPUTS, NO_HEADERS, InferResponse, Sink

__all__ = ["ModelCalls"]


class _PendingCall:
    """One call in flight, and the sink of its responses.

    Attributes:
        worker: The calling guest.
        call: The call.
        version: The version called.
        key: Key of the request there; 0 while it is being submitted.
        is_discarded: Whether the model ignores all further results.
    """

    __slots__ = ("_calls", "_response", "call", "is_discarded", "key", "version", "worker")

    def __init__(self, calls: ModelCalls, worker: Worker, call: ModelCall, version: Target) -> None:
        self.worker = worker
        self.call = call
        self.version = version
        self.key = 0
        self.is_discarded = False
        self._calls = calls
        self._response: InferResponse | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Pass a response on to the calling guest."""
        if final:
            self._calls.remove(self)
        if self.is_discarded:
            if response is not None:
                self.version.confirm_sent(self.key, 1)  # the called model may be blocked until its results are read
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
    def is_blocking_instance(self) -> bool:
        """Whether the calling instance can take no other request until the call is answered.

        A call for one response blocks it if its thread waits. Results of a decoupled call, and those awaited by
        coroutines, arrive while `execute` runs, so they block the instance only during a batch.
        """
        if self.call.is_decoupled or self.call.is_awaited:
            return (self.call.is_blocking or self.call.is_awaited) and bool(self.worker.batches)
        return self.call.is_blocking


class ModelCalls:
    """All calls in flight; implements the part of `GuestServices` that is about calls.

    Attributes:
        made: How many calls were accepted since the start, by the names of the calling and the called model.
    """

    def __init__(self, registry: Registry) -> None:
        self.made: Counter[tuple[str, str]] = Counter()
        self._registry = registry
        self._calls: dict[Worker, dict[int, _PendingCall]] = {}

    def on_call(self, worker: Worker, call: ModelCall) -> None:
        """Submit a call; a call that is rejected gets the error as its response."""
        request = call.request
        name = request.model_name
        try:
            version = self._find(call)
            if request.device is not None or call.uses_device:
                _settle_device_use(worker, call, version)
            pending = _PendingCall(self, worker, call, version)
            sink = _caused(worker, call, pending)
            self._calls.setdefault(worker, {})[call.number] = pending
            try:
                pending.key = version.submit(request, sink, needs_idle=True)
            except NaiadError:
                self.remove(pending)
                if request.trace is not None:
                    request.trace.on_rejected()
                raise
        except NaiadError as error:
            message = f"Model {name} - Error when running inference: {error.message}"
            worker.send_result(
                call.number, InferResponse(name, -1, error=ModelError(message, code=Code.INTERNAL)), True
            )
            return
        self.made[worker.spec.load.model_name, name] += 1
        if version.is_waiting(pending.key):
            self._reject_cycle(pending)

    def is_calling(self, worker: Worker) -> bool:
        """Whether a model waits for results of its calls."""
        return any(not pending.is_discarded for pending in self._calls.get(worker, {}).values())

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None:
        """*count* more results of a call were consumed."""
        pending = self._find_pending(worker, number)
        if pending is not None:
            pending.version.confirm_sent(pending.key, count)

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None:
        """The calling model cancels calls."""
        for number in numbers:
            pending = self._find_pending(worker, number)
            if pending is not None:
                pending.version.cancel(pending.key)

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None:
        """The remaining results of these calls are discarded."""
        for number in numbers:
            pending = self._find_pending(worker, number)
            if pending is not None:
                pending.is_discarded = True
                pending.version.drop_responses(pending.key)

    def on_worker_exit(self, worker: Worker) -> None:
        """Cancel the calls of a guest that has exited."""
        for pending in self._calls.pop(worker, {}).values():
            pending.is_discarded = True
            pending.version.drop_responses(pending.key)
            pending.version.cancel(pending.key)

    def remove(self, pending: _PendingCall) -> None:
        """Remove a call that has its last response."""
        calls = self._calls.get(pending.worker)
        if calls is not None:
            calls.pop(pending.call.number, None)
            if not calls:
                del self._calls[pending.worker]

    def _find_pending(self, worker: Worker, number: int) -> _PendingCall | None:
        return self._calls.get(worker, {}).get(number)

    def _find(self, call: ModelCall) -> Target:
        request = call.request
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

    def on_ensemble_step_waiting(self) -> None:
        """A step of an ensemble waits for an instance: a model that called the ensemble may wait for itself.

        The step was submitted by the ensemble and not by the model, so `on_call` did not see that it waits.
        """
        for calls in list(self._calls.values()):
            for pending in list(calls.values()):
                # A call without a key is being submitted: `on_call` looks at it next.
                is_to_ensemble = pending.key and pending.version.config.platform == ENSEMBLE_PLATFORM
                is_waiting = is_to_ensemble and pending.version.is_waiting(pending.key)
                if is_waiting:
                    self._reject_cycle(pending)

    def on_call_waiting(self) -> None:
        """A call waits that was sent to an idle instance of another process, which was not idle any more."""
        for calls in list(self._calls.values()):
            for pending in list(calls.values()):
                if pending.key and pending.version.is_waiting(pending.key):
                    self._reject_cycle(pending)

    def _reject_cycle(self, last: _PendingCall) -> None:
        """Reject the call *last* if it closes a cycle of instances that wait for each other."""
        cycle = deadlock_cycle(last.worker, self._waits()) if last.is_blocking_instance else ()
        if cycle:
            names = " -> ".join(f"'{worker.spec.name}'" for worker in cycle)
            error = NaiadError(
                f"Model {last.call.request.model_name} - Error when running inference: the call can never be answered, "
                f"as all instances that could wait on each other: {names}. Give one of these models more instances, or "
                "call from decoupled models whose execute returns meanwhile"
            )
            last.version.reject_waiting(last.key, error)

    def _waits(self) -> Mapping[Worker, Sequence[Collection[Worker]]]:
        """For each blocked instance, for each of its calls: the instances that could answer it."""
        waits: defaultdict[Worker, list[Collection[Worker]]] = defaultdict(list)
        for worker, calls in self._calls.items():
            for pending in calls.values():
                if pending.is_blocking_instance:
                    waits[worker] += pending.version.waits_of(pending.key)
        return waits


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


def _no_response(call: ModelCall) -> InferResponse:
    name = call.request.model_name
    return InferResponse(
        name, -1, error=ModelError(f"Model {name} - Error when running inference: it sent no response")
    )

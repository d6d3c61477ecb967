"""Calls of models to other models (BLS): submitted like any request, answered to the guest that called.

Texts are the reference's (PB src/request_executor.cc). A call that only instances could answer which themselves wait
for calls, in a ring, is answered with an error that names the ring; the reference hangs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from naiad.config.model.validate_ensemble import ENSEMBLE_PLATFORM
from naiad.engine.calls.standstill import StandstillWatch, refuse
from naiad.engine.registry import Registry
from naiad.engine.served import ServedVersion
from naiad.errors import Code, ModelError, NaiadError, NotReadyError
from naiad.protocol.inference import InferRequest, InferResponse, Sink
from naiad.scheduling.deadlock import deadlock_cycle
from naiad.workers.calls import Call
from naiad.workers.worker import Worker


class _Outstanding:
    """One call under way; the sink of its responses."""

    __slots__ = ("_desk", "_held", "call", "is_left", "key", "version", "worker")

    def __init__(self, desk: CallDesk, worker: Worker, call: Call, version: ServedVersion) -> None:
        self.worker = worker
        self.call = call
        self.version = version
        self.key = 0
        self.is_left = False
        self._desk = desk
        self._held: InferResponse | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Pass a response on to the calling guest."""
        if final:
            self._desk.forget(self)
        if self.is_left:
            if response is not None:
                self.version.confirm_sent(self.key, 1)
            return
        if self.call.is_decoupled:
            self.worker.result(self.call.number, response, final)
            return
        # Who calls for one response gets one message, however the model called sent its end.
        if response is not None:
            self._held = response
        if final:
            self.worker.result(self.call.number, self._held or _no_response(self.call), True)

    @property
    def is_in_the_way(self) -> bool:
        """Whether the calling instance can do nothing else until this is answered."""
        if self.call.is_decoupled or self.call.is_awaited:
            return (self.call.is_blocking or self.call.is_awaited) and bool(self.worker.batches)
        return self.call.is_blocking


class CallDesk:
    """All calls under way."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._calls: dict[Worker, dict[int, _Outstanding]] = {}
        self._standstill = StandstillWatch(self._calls)

    def on_call(self, worker: Worker, call: Call) -> None:
        """Submit a call; what is wrong with it is answered as a response."""
        request = call.request
        name = request.model_name
        try:
            version = self._find(call)
            outstanding = _Outstanding(self, worker, call, version)
            sink = outstanding if call.traced_by is None else _traced(worker, call.traced_by, request, outstanding)
            self._calls.setdefault(worker, {})[call.number] = outstanding
            try:
                outstanding.key = version.submit(request, sink, alone=True)
            except NaiadError:
                self.forget(outstanding)
                if request.trace is not None:
                    request.trace.on_rejected()
                raise
        except NaiadError as error:
            message = f"Model {name} - Error when running inference: {error.message}"
            worker.result(call.number, InferResponse(name, -1, error=ModelError(message, code=Code.INTERNAL)), True)
            return
        if version.is_waiting(outstanding.key) and not self._refuse_ring(outstanding):
            self._standstill.suspect()

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None:
        """The calling model has taken results."""
        outstanding = self._calls.get(worker, {}).get(number)
        if outstanding is not None:
            outstanding.version.confirm_sent(outstanding.key, count)

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None:
        """The calling model cancels calls."""
        for number in numbers:
            outstanding = self._calls.get(worker, {}).get(number)
            if outstanding is not None:
                outstanding.version.cancel(outstanding.key)

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None:
        """The calling model looks at no further results."""
        for number in numbers:
            outstanding = self._calls.get(worker, {}).get(number)
            if outstanding is not None:
                outstanding.is_left = True
                outstanding.version.waive_flow_control(outstanding.key)

    def on_worker_exit(self, worker: Worker) -> None:
        """The calling guest has ended: nobody wants the answers."""
        for outstanding in self._calls.pop(worker, {}).values():
            outstanding.is_left = True
            outstanding.version.waive_flow_control(outstanding.key)
            outstanding.version.cancel(outstanding.key)

    def forget(self, outstanding: _Outstanding) -> None:
        """A call has its last answer."""
        calls = self._calls.get(outstanding.worker)
        if calls is not None:
            calls.pop(outstanding.call.number, None)
            if not calls:
                del self._calls[outstanding.worker]

    def _find(self, call: Call) -> ServedVersion:
        request = call.request
        version = self._registry.find(request.model_name, request.model_version)
        if not version.is_ready():
            raise NotReadyError(f"Failed for execute the inference request. Model '{request.model_name}' is not ready.")
        if version.config.decoupled and not call.is_decoupled:
            raise NaiadError(
                f"Model {request.model_name} is using the decoupled. The current BLS request call doesn't support "
                "models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                "'async_exec' calls for decoupled models.'"
            )
        return version

    # -- rings --------------------------------------------------------------------------------------------------

    def stood_still(self, worker: Worker, fields: Mapping[str, str]) -> None:
        """A guest tells whether only answers to its calls can let its model go on."""
        self._standstill.told(worker, fields.get("number", ""), is_so=fields.get("is_so") == "1")

    def ensemble_waits(self) -> None:
        """A step of an ensemble waits for an instance: a model that has called the ensemble may wait for itself."""
        for calls in list(self._calls.values()):
            for outstanding in list(calls.values()):
                # A call that is being submitted has no key yet; it is looked at when it has.
                is_to_ensemble = outstanding.key and outstanding.version.config.platform == ENSEMBLE_PLATFORM
                is_waiting = is_to_ensemble and outstanding.version.is_waiting(outstanding.key)
                if is_waiting and not self._refuse_ring(outstanding):
                    self._standstill.suspect()

    def _refuse_ring(self, last: _Outstanding) -> bool:
        """Answer *last* with an error if it has closed a ring of instances that wait on each other."""
        if not last.is_in_the_way:
            return False
        ring = deadlock_cycle(last.worker, self._waits())
        if ring:
            refuse(last, ring)
        return bool(ring)

    def _waits(self) -> Mapping[Worker, Sequence[Collection[Worker]]]:
        waits: defaultdict[Worker, list[Collection[Worker]]] = defaultdict(list)
        for worker, calls in self._calls.items():
            for outstanding in calls.values():
                if outstanding.is_in_the_way:
                    waits[worker] += outstanding.version.waits_of(outstanding.key)
        return waits


def _traced(worker: Worker, caller: int, request: InferRequest, sink: Sink) -> Sink:
    """Make the call's trace a child of that of the calling model's request *caller*, if it is traced."""
    trace = worker.trace_of(caller)
    return sink if trace is None else trace.start_child(request, sink)


def _no_response(call: Call) -> InferResponse:
    name = call.request.model_name
    return InferResponse(
        name, -1, error=ModelError(f"Model {name} - Error when running inference: it sent no response")
    )

"""The requests of one model version, from admission to the last response.

`Admission` hands a request over, the scheduler decides when which guest gets it, `Dispatcher` carries that out. This
module keeps the account: which requests are in flight, how each ends, and what the statistics count.

Everything runs on the event loop's thread and nothing here blocks. A request goes from `start` to the guest in one
call, and a response from `on_response` to the sink in one call, without a task or message queue in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from naiad.config.model.model_config import ModelConfig, instance_groups
from naiad.core import clock
from naiad.core.errors import Code, GuestExitedError, ModelError, NaiadError, fresh, is_model_response, without_frames
from naiad.engine.open_request import Events, OpenRequest
from naiad.engine.scheduling.dynamic.shapes import ShapeKeys
from naiad.engine.scheduling.factory import preserves_order, scheduler_for
from naiad.engine.scheduling.interface import SingleDispatch
from naiad.engine.scheduling.response_order import ResponseOrder
from naiad.engine.scheduling.sequences.states import StateTensor
from naiad.engine.serving.device_use import settle_outputs
from naiad.engine.serving.dispatch import Dispatcher, WorkerScheduler
from naiad.engine.serving.fatal_requests import FatalRequestGuard
from naiad.engine.serving.rate_limiter import RateLimitGate, SharedRateLimiter
from naiad.engine.serving.response_order import Order, OrderedSink
from naiad.engine.serving.responses import ResponsePreparation
from naiad.engine.serving.warmup import WarmUp
from naiad.engine.statistics.counters import FailureReason, Statistics
from naiad.engine.statistics.reported import ReportedStatistics
from naiad.guests.exchange import ExecutingBatch, ExecutionReport, GuestResponse, SingleResponse
from naiad.guests.worker import Worker
from naiad.protocol.delivery import end_failed_sink, send_safely
from naiad.protocol.inference import InferRequest, InferResponse
from naiad.protocol.request_plan import CheckedLayout

logger = logging.getLogger("naiad.engine")

# A guest that had to wait for the host between two short batches would idle. So an instance may hold as many requests
# as it executes within a millisecond, but no more than 16 (see `engine.scheduling.fifo`).
_DEPTH_WINDOW_NS = 1_000_000
_MAX_DEPTH = 16
_MAX_DEPTH_PACE_NS = _DEPTH_WINDOW_NS // _MAX_DEPTH
# Up to this length of `execute`, an instance gets its next request ahead while at least as many wait as the model has
# instances: each of them finds another one then. The way to the guest and back takes some 0.3 ms, which is worth it.
_AHEAD_NS = 10_000_000
_INITIAL_PACE_NS = 1_000_000_000

# Where `execute` takes longer, the guest gets its next batch before the responses of the last one are passed on. Where
# it is shorter, the guest would take the processor from the clients that the responses wake, and get smaller batches.
_REFILL_NS = 2_500_000

_SOON_NS = 1_000_000  # a request that waits no longer for an instance of its process does not go to another one
# Where the oldest request has been in flight for so long, requests are not what they usually are.
_STUCK_NS = 10_000_000
_INITIAL_TYPICAL_NS = 2_000_000
_UNLIMITED_CREDIT = 1 << 40
# How often both sides free pages after a pause: the second time frees what the first made the guest give back.
_TRIM_COUNT = 2


class RequestsInFlight:
    """The requests in flight of one model version. Implements `RequestDelegate`."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        keys: Iterator[int],
        warm_up: WarmUp,
        takers_of: Callable[[OpenRequest], Collection[Worker]] = lambda _: (),
        limiter: SharedRateLimiter | None = None,
        states: Sequence[StateTensor] = (),
    ) -> None:
        """No requests yet; *takers_of* finds the guests that may take one that waits, none while one is being started.

        The other arguments are as for `ModelVersion`.
        """
        self.takers_of = takers_of
        self._keys = keys
        self.statistics = Statistics(dict(config.message.metric_tags), is_cached=config.message.response_cache.enable)
        self.order: Order | None = ResponseOrder() if preserves_order(config) else None
        # Counts what a native backend reports, set before the first request; None for models in Python.
        self.reported: ReportedStatistics | None = None
        self.lanes = 1  # batches that a guest executes at once; changed, if at all, before the first guest is added
        self.trims_due = 0  # from 0 to _TRIM_COUNT, in the pause after the last request
        self.fatal = FatalRequestGuard(config.name)
        self._config = config
        self._version = version
        self._model = config.name, version
        self._warm_up = warm_up
        # In the order in which requests came. A request is removed before its sink gets the last response, so no sink
        # gets two. Those whose `worker` is None are with the scheduler, or staged at the gate; the others are in
        # `open` of that worker until it has passed on their last response.
        self._pending: dict[int, OpenRequest] = {}
        # Keys, also of requests that have ended meanwhile: `queued_inside` removes these.
        self._queued_inside: set[int] = set()
        # The longest recent `execute`: rises at once, falls by an eighth per batch. A new version counts as slow.
        self._pace = _INITIAL_PACE_NS
        self.typical = _INITIAL_TYPICAL_NS  # how long `execute` usually takes; followed from `observe_load` on
        self._note_load: Callable[[int], None] | None = None
        # What it has dispatched to a worker and has not been told the end of is what that worker's `batches` has.
        self._scheduler: WorkerScheduler = scheduler_for(config, states)
        self._sequences = self._scheduler.sequences
        self._singly = self._scheduler.singly
        self.is_batching = self._singly is None  # whether the scheduler may put requests together, delay or reject them
        self._shapes = ShapeKeys(config)
        self._preparation = ResponsePreparation(config, states, self.statistics)
        self._is_prepared = self._preparation.is_needed
        self._is_decoupled = config.decoupled
        groups = instance_groups(config)
        gate = None
        if limiter is not None and any(group.HasField("rate_limiter") for group in groups.values()):
            gate = RateLimitGate(limiter, groups, self._scheduler, self._on_rejected)
        self._gate = gate
        self.dispatcher = Dispatcher(self._scheduler, keys, self.fail, self._on_rejected, gate)
        self._carry_out = self.dispatcher.carry_out

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def forwarding_scheduler(self) -> SingleDispatch[Worker, OpenRequest] | None:
        """What dispatches requests that are forwarded; None where they or their responses have to be looked at."""
        is_plain = self._gate is None and self.reported is None and not self._is_prepared
        return self._singly if is_plain else None

    def takes_at_once(self, typical_elsewhere: int = 0) -> bool:
        """Whether a request that arrives now is better off here than in another process, however idle that is.

        An instance executes it at once, or soon: the way to another process and back takes both of them about 0.1 ms of
        CPU. `observe_load` has to be called for that. *typical_elsewhere* is how long `execute` usually takes in other
        processes, in nanoseconds.
        """
        scheduler = self._singly
        if self.has_idle():
            return True
        if scheduler is None or not self._pending:
            return False
        if max(self.typical, typical_elsewhere) * len(self._pending) > _SOON_NS * scheduler.instance_count:
            return False
        return clock.monotonic_ns() - next(iter(self._pending.values())).queued < _STUCK_NS

    def observe_load(self, note: Callable[[int], None]) -> None:
        """From now on call *note* with the number of requests in flight whenever one has been answered.

        How long `execute` usually takes is followed, too: what divides requests among processes needs both.
        """
        self._note_load = note

    def _follow_load(self, note: Callable[[int], None], took_ns: int) -> None:
        """A request was answered: rises or falls `typical` by a sixteenth, so that few long ones do not count."""
        typical = self.typical
        self.typical = typical + (typical >> 4) if took_ns > typical else typical - (typical >> 4)
        note(len(self._pending))

    def has_idle(self) -> bool:
        """Whether an instance holds no request, and none waits."""
        found = None if self._singly is None else self._singly.next_instance()
        return found is not None and not found[1]

    def holders_before(self, pending: OpenRequest) -> Sequence[Collection[Worker]]:
        return () if self._gate is None else self._gate.holders_before(pending)

    @property
    def waiting(self) -> Collection[OpenRequest]:
        """The requests that wait for an instance, oldest first, if they are dispatched one by one."""
        return () if self._singly is None else self._singly.waiting

    def give_away(self, pending: OpenRequest) -> None:
        del self._pending[pending.key]
        self.dispatcher.withdraw(pending)

    # -- from the client ----------------------------------------------------------------------------------------

    def track(self, pending: OpenRequest, layout: CheckedLayout) -> None:
        """Have a request that was sent to its guest already."""
        pending.key = key = next(self._keys)
        pending.holder = self
        pending.batch_size, pending.packed = layout.batch_size, layout.packed
        pending.queued = pending.laid_out = clock.monotonic_ns()
        self._pending[key] = pending
        self.trims_due = _TRIM_COUNT

    def expect_trims(self) -> None:
        """Both sides have pages to free in the next pause."""
        self.trims_due = _TRIM_COUNT

    def untrack(self, pending: OpenRequest) -> None:
        self._pending.pop(pending.key, None)

    def start(self, pending: OpenRequest, layout: CheckedLayout) -> None:
        # As `track`, which would be a call per request more.
        pending.key = key = next(self._keys)
        pending.holder = self
        pending.batch_size, pending.packed = layout.batch_size, layout.packed
        pending.queued = clock.monotonic_ns()
        self._pending[key] = pending
        self.trims_due = _TRIM_COUNT
        try:
            if self.is_batching:
                self._enqueue(pending)
            else:
                self._carry_out(self._scheduler.enqueue(pending, pending.queued, needs_idle=pending.needs_idle))
        except NaiadError:
            raise
        except Exception:  # the caller has no request then, so nothing may be left of it here
            if self._pending.pop(key, None) is not None:
                self.dispatcher.withdraw(pending)
            raise

    def _enqueue(self, pending: OpenRequest) -> None:
        pending.shape_key = self._shapes.key(pending.request)
        if self.order is not None:
            pending.sink = OrderedSink(self.order, pending.sink)
        self._carry_out(self._scheduler.enqueue(pending, pending.queued, needs_idle=pending.needs_idle))
        pending.is_queued = True
        if pending.rejection is not None:
            raise fresh(pending.rejection)

    def _on_rejected(self, pending: OpenRequest, error: NaiadError) -> None:
        """The scheduler rejects a request: while it is enqueued, or later because of a timeout."""
        if pending.is_queued:
            is_cancelled = error.code is Code.CANCELLED
            self.fail([pending], error, FailureReason.CANCELED if is_cancelled else FailureReason.REJECTED)
        else:  # `_enqueue` raises: a request that is rejected at once never reaches its sink and is not counted
            del self._pending[pending.key]
            pending.rejection = without_frames(error)

    def has(self, pending: OpenRequest) -> bool:
        return self._pending.get(pending.key) is pending

    def cancel_request(self, pending: OpenRequest) -> None:
        if not self.has(pending):
            return
        pending.is_cancelled = True
        if pending.worker is not None:
            pending.worker.cancel([pending.key])
        else:
            self.reject_waiting(pending, _cancelled())

    def reject_waiting(self, pending: OpenRequest, error: NaiadError) -> None:
        if self.has(pending) and self.dispatcher.withdraw(pending):
            is_cancelled = error.code is Code.CANCELLED
            self.fail([pending], error, FailureReason.CANCELED if is_cancelled else FailureReason.OTHER)

    def confirm_responses(self, pending: OpenRequest, count: int) -> None:
        pending.on_responses_sent(count)

    def drop_responses(self, pending: OpenRequest) -> None:
        """See `SubmittedRequest.drop_responses`. What its sink still has counts as sent."""
        if self.has(pending):
            pending.drops_responses = True
            pending.on_dropped()

    def is_waiting(self, pending: OpenRequest) -> bool:
        return pending.worker is None and self.has(pending)

    def waits_of(self, pending: OpenRequest) -> Events:
        """See `Holder`. A request waits for its guest, for any while it is queued, or for the holders of a resource."""
        if not self.has(pending):
            return ()
        if pending.worker is not None:
            return ((pending.worker,),)
        return self.holders_before(pending) or (self.takers_of(pending),)

    # -- state --------------------------------------------------------------------------------------------------

    def find(self, key: int) -> OpenRequest | None:
        return self._pending.get(key)

    def request_of(self, key: int) -> InferRequest | None:
        pending = self._pending.get(key)
        return None if pending is None else pending.request

    def is_held_back(self, worker: Worker) -> bool:
        requests = [self._pending[key] for key in worker.open if key in self._pending]
        return any(each.unsent and not each.drops_responses for each in requests)

    def has_uncancelled(self) -> bool:
        """Whether any client still waits; a model may take long to notice that its request was cancelled."""
        return not all(pending.is_cancelled for pending in self._pending.values())

    def finish_sequences(self) -> int:
        if self._sequences is None:
            return 0
        self._sequences.close()
        return self.open_sequences

    @property
    def open_sequences(self) -> int:
        return 0 if self._sequences is None else self._sequences.open_count

    def has_sequence(self, correlation_id: int | str) -> bool:
        return self._sequences is not None and self._sequences.has_sequence(correlation_id)

    # -- from the guest -----------------------------------------------------------------------------------------

    def on_response(self, worker: Worker, answer: GuestResponse, started: int, ended: int) -> None:
        pending = self._pending.get(answer.key)
        if pending is None:
            # A warm-up sample; or a request that failed meanwhile, or a row without a request: these are ignored.
            self._warm_up.on_response(answer)
            return
        if answer.reschedule:
            self._reschedule(worker, pending, started, ended)
            return
        request, response = pending.request, answer.response
        if response is not None:
            response.request_id = request.request_id
            if response.is_on_device or request.device is not None:
                settle_outputs(request, response)
        if self._is_prepared:
            if response is not None:
                response = self._preparation.prepare(worker, pending, response)
            if pending.drops_responses and response is not None:
                pending.on_dropped()
                if not answer.final:
                    return
            elif response is None and not answer.final:
                return
        if answer.final:
            del self._pending[answer.key]
            now = clock.monotonic_ns()
            laid_out = _input_began(pending.laid_out, worker, started)
            error = None if response is None else response.error
            if self.reported is not None:
                self.reported.on_end(pending.key, pending.queued, pending.batch_size)
            elif error is None or is_model_response(
                error
            ):  # an error that the model sent as its response counts as a success
                self.statistics.on_success(pending.batch_size, pending.queued, laid_out, started, ended, now)
            if error is not None:
                self._count_error(pending, error, now)
            if request.trace is not None:
                request.trace.on_computed(pending.queued, laid_out, started, ended, now)
            if pending.drops_responses and error is None and self._is_decoupled:
                response = None
        try:
            pending.sink.send(response, answer.final)
        except Exception as error:  # noqa: BLE001 - logged; else the guest would be ended and the client would wait
            self._on_sink_failed(pending, error)
        if answer.final:
            pending.release()
            if (note := self._note_load) is not None:
                self._follow_load(note, ended - started)

    def on_forwarded_response(self, worker: Worker, response: SingleResponse, batch: ExecutingBatch) -> None:
        _, key, started, ended, layout, outputs, _ = response
        pending = self._pending.pop(key, None)
        if pending is not None and pending.forwarded is not None:
            now = clock.monotonic_ns()
            laid_out = _input_began(pending.laid_out, worker, started)
            self.statistics.on_success(pending.batch_size, pending.queued, laid_out, started, ended, now)
            try:
                pending.forwarded.source.respond(pending.forwarded.number, self._model, layout, outputs)
            except Exception as error:  # noqa: BLE001 - as in `on_response`
                self._on_sink_failed(pending, error)
            pending.release()
        self.on_batch_done(worker, batch, started, ended)
        if (note := self._note_load) is not None:
            self._follow_load(note, ended - started)

    def _on_sink_failed(self, pending: OpenRequest, error: Exception) -> None:
        """A response cannot be passed on: end the request with an error, for its client and its guest."""
        if self._pending.pop(pending.key, None) is not None:  # else the last response was counted before it was sent
            self.statistics.on_failure(clock.monotonic_ns() - pending.queued)
            if pending.worker is not None:
                pending.worker.cancel([pending.key])
                pending.worker.credit(pending.key, _UNLIMITED_CREDIT)
        end_failed_sink(pending.sink, error, (*self._model, pending.request.request_id))
        pending.release()

    def on_batch_unsent(self, worker: Worker, batch: ExecutingBatch, error: Exception) -> None:
        if batch.size:  # else a warm-up sample, whose inputs are small
            items = [self._pending[key] for key in batch.keys if key in self._pending]
            self.dispatcher.on_unsent(worker, items, error)

    def _count_error(self, pending: OpenRequest, error: NaiadError, now: int) -> None:
        if is_model_response(error):
            self.statistics.on_error_response()
        else:
            self.statistics.on_failure(now - pending.queued, FailureReason.BACKEND)

    def _reschedule(self, worker: Worker, pending: OpenRequest, started: int, ended: int) -> None:
        """The model asks for the same request again, which only iterative sequences allow."""
        if self._sequences is None or not self._config.message.sequence_batching.iterative_sequence:
            problem = "which takes sequence_batching's iterative_sequence"
        elif not any(pending.key in batch.keys for batch in worker.batches.values()):
            problem = "after its execute had returned, which is too late"
        elif pending.is_cancelled:
            self.fail([pending], _cancelled(), FailureReason.CANCELED)
            return
        else:
            now = clock.monotonic_ns()
            if self.reported is None:
                laid_out = _input_began(pending.laid_out, worker, started)
                self.statistics.on_success(pending.batch_size, pending.queued, laid_out, started, ended, now)
            pending.worker, pending.queued = None, now  # each round counts as a request, as in the reference
            self._sequences.reschedule(pending)
            return
        message = f"model '{self._config.name}' rescheduled a request, {problem}"
        logger.error("%s", message)
        self.fail([pending], ModelError(message))

    def is_refill_urgent(self, took_ns: int) -> bool:
        """Whether the guest is to get its next batch before the responses of the last one are passed on.

        Not with sequences: the next request of one may depend on the responses before it.
        """
        return took_ns >= _REFILL_NS and self._sequences is None and self._scheduler.waiting_count > 0

    def on_batch_done(self, worker: Worker, batch: ExecutingBatch, started: int, ended: int) -> None:
        if not batch.size:  # a warm-up sample
            return
        now = clock.monotonic_ns()
        if self.reported is None:
            self.statistics.on_execution(batch.size, _input_began(batch.sent, worker, started), started, ended, now)
        took, pace = ended - started, self._pace - (self._pace >> 3)
        self._pace = pace = took if took > pace else pace  # noqa: FURB136 - `max` would be a call per batch
        depth = _MAX_DEPTH if pace <= _MAX_DEPTH_PACE_NS else depth_for(pace)
        if depth == 1 and pace <= _AHEAD_NS and self._may_send_ahead():
            depth = 2
        self._scheduler.set_depth(worker, depth if depth > self.lanes else self.lanes)  # noqa: FURB136 - as above
        if self._gate is not None:
            self._gate.on_batch_done(worker)
        actions = self._scheduler.on_finished(worker, now)
        if actions or self.is_batching:  # schedulers that batch set their timer when actions are carried out
            self._carry_out(actions)

    def _may_send_ahead(self) -> bool:
        """Whether an instance may have its next request although `execute` takes long; see `_AHEAD_NS`."""
        scheduler = self._singly
        if scheduler is None or self._gate is not None:
            return False  # a batch grows while it waits, and resources are for requests that execute
        return len(scheduler.waiting) >= scheduler.instance_count

    def on_progress(self, key: int, started: int) -> None:
        """See `RequestDelegate.on_progress`. The time until *started* counts as time in the queue."""
        pending = self._pending.get(key)
        if pending is None:
            return
        if started:
            self._queued_inside.discard(key)
            pending.laid_out = min(max(started, pending.laid_out), clock.monotonic_ns())
        else:
            self._queued_inside.add(key)

    @property
    def queued_inside(self) -> int:
        """Number of requests that wait inside a guest, as its model has reported."""
        self._queued_inside &= self._pending.keys()
        return len(self._queued_inside)

    def on_guest_exit(self, worker: Worker, error: GuestExitedError, now: float) -> frozenset[float]:
        """Fail what the guest was executing when it exited *now*; put back into the queue what it had not begun.

        Returns the exits that a request is blamed for, if it is refused from now on: see `FatalRequests.on_exit`.
        """
        self._warm_up.on_guest_exit(worker, error)
        self._scheduler.remove_instance(worker)
        batches = list(worker.batches.values())
        worker.batches.clear()
        if batches and batches[0].sent:
            del batches[: self.lanes]  # they were being executed; the guest had only received the others
        keys = [key for batch in batches for key in batch.keys]
        not_begun = tuple(self._pending[key] for key in keys if key in worker.open and key in self._pending)
        begun = [self._pending[key] for key in sorted(worker.open.difference(keys)) if key in self._pending]
        worker.open.clear()
        blamed = self.fatal.on_exit([pending.request for pending in begun], error, now) if begun else frozenset()
        self.fail(begun, error)
        if self._gate is not None:
            not_begun += self._gate.remove(worker)
        for pending in not_begun:
            pending.worker = None
        # Cancelled requests end here: only this guest knew of the cancellation, and the next one would execute them.
        self.fail([pending for pending in not_begun if pending.is_cancelled], _cancelled(), FailureReason.CANCELED)
        not_begun = tuple(pending for pending in not_begun if not pending.is_cancelled)
        if begun:
            not_begun = self._without_refused(not_begun)
        self._carry_out(self._scheduler.requeue(not_begun, clock.monotonic_ns()))
        return blamed

    def _without_refused(self, not_begun: tuple[OpenRequest, ...]) -> tuple[OpenRequest, ...]:
        """*not_begun* without the requests that are refused from now on; those, including queued ones, are rejected."""
        refused = dict(self.fatal.sort_out(self._pending.values()))
        for pending, error in refused.items():
            if pending in not_begun:
                self.fail([pending], error)
            else:
                self.reject_waiting(pending, error)
        return tuple(pending for pending in not_begun if pending not in refused)

    def add_guest(self, worker: Worker) -> None:
        self.dispatcher.add(worker)
        if self.lanes > 1:
            self._scheduler.set_depth(worker, self.lanes)

    def retire_guest(self, worker: Worker) -> None:
        """Send no more requests to a guest; those that it has, it may finish. `forget_guest` follows."""
        self._scheduler.remove_instance(worker)
        staged = () if self._gate is None else self._gate.retire(worker)
        if staged:
            self._carry_out(self._scheduler.requeue(staged, clock.monotonic_ns()))

    def forget_guest(self, worker: Worker) -> None:
        """A retired guest has ended: it needs no resources any more."""
        if self._gate is not None:
            self._gate.remove(worker)

    def follow_groups(self, config: ModelConfig) -> None:
        if self._gate is not None:
            self._gate.groups = instance_groups(config)

    def is_busy(self, worker: Worker) -> bool:
        found = [self._pending[key] for key in worker.open if key in self._pending]
        return any(not pending.is_cancelled for pending in found)

    def is_in_use(self, worker: Worker) -> bool:
        """Whether a guest has requests, cancelled ones included, or sequences."""
        return bool(worker.open) or (self._sequences is not None and self._sequences.is_in_use(worker))

    def oldest_wait_ns(self) -> int:
        """How long the oldest request that was not sent to a guest yet has waited; 0 without one."""
        waiting = (pending.queued for pending in self._pending.values() if pending.worker is None)
        oldest = next(waiting, None)  # requests are kept in the order in which they came
        return 0 if oldest is None else clock.monotonic_ns() - oldest

    def fail_guest(self, worker: Worker, error: NaiadError) -> None:
        self.fail([self._pending[key] for key in sorted(worker.open) if key in self._pending], error)

    def count_reports(self) -> None:
        """From now on count what the backend reports, and nothing else of requests that it answers."""

        def find(key: int) -> tuple[int, int] | None:
            pending = self._pending.get(key)
            return None if pending is None else (pending.queued, pending.batch_size)

        self.reported = ReportedStatistics(self.statistics, find)

    def on_reports(self, reports: Sequence[ExecutionReport]) -> None:
        """See `RequestDelegate.on_reports`; what the guest of a model in Python reports is ignored."""
        if self.reported is not None:
            self.reported.on_reports(reports)

    # -- failing ------------------------------------------------------------------------------------------------

    def fail(
        self, items: Sequence[OpenRequest], error: NaiadError, reason: FailureReason = FailureReason.OTHER
    ) -> None:
        """Answer requests with *error*; those that have ended meanwhile are left out."""
        now = clock.monotonic_ns()
        without_frames(error)
        for pending in items:
            if self._pending.pop(pending.key, None) is None:
                continue
            self.statistics.on_failure(now - pending.queued, reason)
            response = InferResponse(self._config.name, self._version, pending.request.request_id, error=error)
            send_safely(pending.sink, response, True, (*self._model, response.request_id))
            pending.release()

    def fail_waiting(self, error: NaiadError) -> None:
        self.fail(list(self._scheduler.drain()), error)

    def fail_all(self, error: NaiadError) -> None:
        self.fail(list(self._pending.values()), error)


def depth_for(execution_ns: int) -> int:
    """How many requests an instance may hold at once if `execute` takes so long."""
    if execution_ns >= _DEPTH_WINDOW_NS:
        return 1
    return _MAX_DEPTH if execution_ns <= _MAX_DEPTH_PACE_NS else _DEPTH_WINDOW_NS // execution_ns


def _input_began(sent: int, worker: Worker, started: int) -> int:
    """When the input of a batch counts as begun: not while the batch waited for the one before it in the guest.

    That time counts as time in the queue, as it does where the host lets the batch wait.
    """
    # Not between the two: another of several batches at once, or this one, whose last response comes after `execute`.
    return free if sent < (free := worker.free_since) < started else sent


def _cancelled() -> NaiadError:
    return NaiadError("Request was cancelled", code=Code.CANCELLED)

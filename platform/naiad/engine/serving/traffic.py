"""The requests of one model version, from their arrival to their last answer.

The scheduler decides, `dispatch` carries out, this module keeps the account. Everything runs on the event loop's thread
and nothing here waits: a request goes from `submit` to the guest, and its answer from the guest to the sink, in one
call each.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence

from naiad.config.model.model_config import ModelConfig, instance_groups
from naiad.engine.loading.warmup import Sample, WarmUp
from naiad.engine.response_cache import CachedAnswers, ResponseCache
from naiad.engine.served import version_numbers
from naiad.engine.serving.dispatch import Dispatcher, WaitingDispatcher, WorkerScheduler
from naiad.engine.serving.pending import Pending
from naiad.engine.serving.rate_limiter import LimitedDispatcher, SharedLimiter
from naiad.engine.serving.request_check import RequestCheck, prefix
from naiad.engine.serving.reshape import OutputReshape
from naiad.engine.serving.response_order import Order, OrderedSink
from naiad.engine.serving.sequence_states import StateOutputs
from naiad.engine.statistics.counters import Reason, Statistics
from naiad.engine.statistics.response_times import Progress, ResponseTimes
from naiad.errors import Code, GuestDiedError, ModelError, NaiadError, NotReadyError, is_answer
from naiad.protocol.inference import InferRequest, InferResponse, Sink, Trace
from naiad.scheduling.dynamic.shapes import ShapeKeys
from naiad.scheduling.factory import preserves_order, scheduler_for
from naiad.scheduling.fifo import FifoScheduler
from naiad.scheduling.response_order import ResponseOrder
from naiad.scheduling.sequences.batcher import SequenceScheduler
from naiad.scheduling.sequences.states import StateTensor
from naiad.workers.exchange import Answer, Batch
from naiad.workers.worker import Worker

logger = logging.getLogger("naiad.engine")

_AHEAD_NS = 1_000_000
_MOST_AHEAD = 16
_LEAST_PACE_NS = _AHEAD_NS // _MOST_AHEAD
_UNKNOWN_PACE_NS = 1_000_000_000
"""An instance may hold as many requests as it works off in a millisecond (see `scheduling.fifo`)."""
_HURRIED_NS = 2_500_000
"""Where `execute` takes longer, a guest hears of its next work before its answers are made. Where it is shorter, the
guest would only take the processor from the clients that the answers wake, and have smaller batches."""

_ALL_RESPONSES = 1 << 40
_TRIMS = 2
"""How often both sides give free pages back after a pause: once more for what the first makes guests give back."""


class Traffic:
    """The queue, the requests in flight and the statistics of a version.

    Attributes:
        config: The version's effective configuration.
        version: Its version number.
        number: Which of all versions ever loaded this is: tells two loads of one version apart.
        reason: Why it can serve no more; empty while it can.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        samples: Sequence[Sample] = (),
        limiter: SharedLimiter | None = None,
        states: Sequence[StateTensor] = (),
    ) -> None:
        self.config = config
        self.version = version
        self.number = next(version_numbers)
        self.reason = ""
        self._check = RequestCheck(config)
        self._statistics = Statistics(dict(config.message.metric_tags), is_cached=config.message.response_cache.enable)
        self._responses = self._statistics.responses = ResponseTimes() if config.decoupled else None
        self._reshape = OutputReshape(config)
        self._pending: dict[int, Pending] = {}
        self._keys = itertools.count(1)
        self._pace = _UNKNOWN_PACE_NS  # the longest execute of late: falls slowly, rises at once
        self._trims_due = 0
        self._scheduler: WorkerScheduler = scheduler_for(config, states)
        self._states = StateOutputs(config, states) if states else None
        self._prepares = config.decoupled or self._reshape.is_needed or bool(states)
        self._waits = not isinstance(self._scheduler, FifoScheduler)
        self._is_sequential = isinstance(self._scheduler, SequenceScheduler)
        groups = instance_groups(config)
        self._is_limited = limiter is not None and any(group.HasField("rate_limiter") for group in groups.values())
        self._dispatcher: Dispatcher
        if limiter is not None and self._is_limited:
            self._dispatcher = LimitedDispatcher(
                self._scheduler, self._keys, self._fail, self._refused, limiter, groups
            )
        else:
            kind = WaitingDispatcher if self._waits else Dispatcher
            self._dispatcher = kind(self._scheduler, self._keys, self._fail, self._refused)
        self._warm_up = WarmUp(samples, self._keys)
        self._carry_out = self._dispatcher.carry_out
        self._shapes = ShapeKeys(config)
        self._order: Order | None = ResponseOrder() if preserves_order(config) else None
        self._cached: CachedAnswers | None = None

    @property
    def totals(self) -> Statistics:
        """What is counted of its requests."""
        return self._statistics

    def keep_responses(self, cache: ResponseCache) -> None:
        """From now on answer requests that *cache* knows the response of from there."""
        self._cached = CachedAnswers(cache, self.config, self.version, self.number, self._statistics, self._order)

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(self, request: InferRequest, sink: Sink, *, alone: bool = False) -> int:
        """Queue a request; return its key.

        Args:
            request: The request.
            sink: Gets its responses.
            alone: Only an instance that holds nothing may be given it: it comes from a model, and behind a request
                that calls that model in turn it would wait for ever.

        Raises:
            InvalidRequestError: If it does not fit the model.
            NotReadyError: If the version cannot serve any more, or its queue is full.
        """
        if self.reason:
            raise NotReadyError(f"{prefix(request)}model '{self.config.name}' cannot serve: {self.reason}")
        pattern = request.pattern
        if pattern is None or pattern.checked_by != self.number:
            batch_size = self._check.check_for(self.number, request)
        else:
            batch_size = pattern.batch_size
        key = next(self._keys)
        if self._cached is not None:
            unanswered = self._cached.answer(request, sink)
            if unanswered is None:
                return key
            sink = unanswered
        pending = self._pending[key] = Pending(key, request, sink, batch_size)
        self._trims_due = _TRIMS
        if self._waits:
            self._enqueue(pending, alone=alone)
        else:
            self._carry_out(self._scheduler.enqueue(pending, pending.queued, alone=alone))
        return key

    def _enqueue(self, pending: Pending, *, alone: bool) -> None:
        """Queue a request with a scheduler that looks at more of it than its age, and may refuse it."""
        pending.shape_key = self._shapes.key(pending.request)
        if self._order is not None:
            pending.sink = OrderedSink(self._order, pending.sink)
        self._carry_out(self._scheduler.enqueue(pending, pending.queued, alone=alone))
        pending.is_queued = True
        if pending.refusal is not None:
            raise pending.refusal

    def _refused(self, pending: Pending, error: NaiadError) -> None:
        if pending.is_queued:
            self._fail([pending], error, Reason.CANCELED if error.code is Code.CANCELLED else Reason.REJECTED)
        else:  # `submit` says so
            del self._pending[pending.key]
            pending.refusal = error

    def cancel(self, key: int) -> None:
        """Take a request back: out of the queue, or tell its guest."""
        pending = self._pending.get(key)
        if pending is None:
            return
        pending.is_cancelled = True
        if pending.worker is not None:
            pending.worker.cancel([key])
        else:
            self.reject_waiting(key, _cancelled())

    def reject_waiting(self, key: int, error: NaiadError) -> None:
        """Answer a request that waits for an instance with *error*."""
        pending = self._pending.get(key)
        if pending is not None and self._dispatcher.withdraw(pending):
            self._fail([pending], error, Reason.CANCELED if error.code is Code.CANCELLED else Reason.OTHER)

    def finish_sequences(self) -> int:
        """Let no sequence begin any more; how many are under way."""
        if not isinstance(self._scheduler, SequenceScheduler):
            return 0
        self._scheduler.close()
        return self._scheduler.open_count

    def has_sequence(self, correlation_id: int | str) -> bool:
        """Whether a sequence of that id is under way."""
        return isinstance(self._scheduler, SequenceScheduler) and self._scheduler.has_sequence(correlation_id)

    def is_waiting(self, key: int) -> bool:
        """Whether the request waits for an instance."""
        pending = self._pending.get(key)
        return pending is not None and pending.worker is None

    def confirm_sent(self, key: int, count: int) -> None:
        """Note that responses have left for the client; its model may be held back until they have."""
        pending = self._pending.get(key)
        if pending is not None:
            pending.has_left(count)

    def waive_flow_control(self, key: int) -> None:
        """Note that no response of a request will ever wait for its client again."""
        pending = self._pending.get(key)
        if pending is not None and pending.worker is not None:
            pending.worker.credit(key, _ALL_RESPONSES)

    def trace_of(self, key: int) -> Trace | None:
        """The trace of a request that has not its last answer."""
        pending = self._pending.get(key)
        return None if pending is None else pending.request.trace

    # -- reports of workers -------------------------------------------------------------------------------------

    def on_response(self, worker: Worker, answer: Answer, started: int, ended: int) -> None:
        """Pass a response on to the request's sink."""
        pending = self._pending.get(answer.key)
        if pending is None:
            self._warm_up.on_response(answer)  # or its guest was given up meanwhile, or it is a row without a request
            return
        if answer.again:
            self._again(worker, pending, started, ended)
            return
        response = answer.response
        if response is not None:
            response.request_id = pending.request.request_id
        if self._prepares:
            response = self._prepare(worker, pending, response, started, ended)
            if response is None and not answer.final:
                return
        if answer.final:
            del self._pending[answer.key]
            now = time.monotonic_ns()
            error = None if response is None else response.error
            if error is None or is_answer(error):  # which the reference calls a success
                self._statistics.succeeded(pending.batch_size, pending.queued, pending.laid_out, started, ended, now)
            if error is not None:
                self._erred(pending, error, now)
            if pending.request.trace is not None:
                pending.request.trace.on_computed(pending.queued, pending.laid_out, started, ended, now)
        pending.sink.send(response, answer.final)

    def _erred(self, pending: Pending, error: NaiadError, now: int) -> None:
        if is_answer(error):
            self._statistics.erred()
        else:
            self._statistics.failed(now - pending.queued, Reason.BACKEND)

    def _prepare(
        self, worker: Worker, pending: Pending, response: InferResponse | None, started: int, sent: int
    ) -> InferResponse | None:
        """Make of a model's response, or an end without one, what its client shall have; None if that is nothing."""
        if response is None:
            if self._responses is not None:
                so_far = pending.progress or Progress(started)
                self._responses.ended(so_far, sent, is_cancelled=pending.is_cancelled)
            return None
        if self._states is not None and response.outputs and not self._states.take(pending, response):
            worker.credit(pending.key, 1)
            return None
        if self._responses is not None:
            progress, now = pending.progress, time.monotonic_ns()
            if progress is None:
                progress = Progress(started)
                self._statistics.responded_first(now - pending.queued)
            self._responses.sent(progress, response, sent, now)
            pending.will_leave(response, progress)
        if self._reshape.is_needed and response.outputs:
            self._reshape.apply(response)
        return response

    def _again(self, worker: Worker, pending: Pending, started: int, ended: int) -> None:
        """The model wants a request once more, which only iterative sequences give it."""
        scheduler = self._scheduler
        batching = self.config.message.sequence_batching
        if not isinstance(scheduler, SequenceScheduler) or not batching.iterative_sequence:
            problem = "which takes sequence_batching's iterative_sequence"
        elif not any(pending.key in batch.keys for batch in worker.batches.values()):
            problem = "after its execute had returned, which is too late"
        elif pending.is_cancelled:
            self._fail([pending], _cancelled(), Reason.CANCELED)
            return
        else:
            now = time.monotonic_ns()
            self._statistics.succeeded(pending.batch_size, pending.queued, pending.laid_out, started, ended, now)
            pending.worker, pending.queued = None, now  # each round counts as a request, as in the reference
            scheduler.reschedule(pending)
            return
        message = f"model '{self.config.name}' rescheduled a request, {problem}"
        logger.error("%s", message)
        self._fail([pending], ModelError(message))

    def is_refill_urgent(self, took_ns: int) -> bool:
        """Whether requests wait, and the guest loses more by waiting for answers to be made than it costs to hurry.

        What follows in a sequence may depend on the answers before it.
        """
        return took_ns >= _HURRIED_NS and not self._is_sequential and self._scheduler.waiting_count > 0

    def on_batch_done(self, worker: Worker, batch: Batch, started: int, ended: int) -> None:
        """Give the instance its next work."""
        if not batch.size:  # a sample
            return
        now = time.monotonic_ns()
        self._statistics.executed(batch.size, batch.sent, started, ended, now)
        took, pace = ended - started, self._pace - (self._pace >> 3)
        self._pace = pace = took if took > pace else pace  # noqa: FURB136 - on the request path, as is `depth_for`
        self._scheduler.set_depth(worker, depth_for(pace))
        if self._is_limited:
            self._dispatcher.done(worker)
        self._carry_out(self._scheduler.on_finished(worker, now))

    def _lose(self, worker: Worker, error: GuestDiedError) -> None:
        """A guest died: fail what it worked on, put back what it had not begun."""
        self._warm_up.lost(worker, error)
        self._scheduler.remove_instance(worker)
        batches = list(worker.batches.values())
        worker.batches.clear()
        if batches and batches[0].sent:
            del batches[0]  # it was being executed
        keys = [key for batch in batches for key in batch.keys]
        not_begun = tuple(self._pending[key] for key in keys if key in worker.open and key in self._pending)
        lost = worker.open.difference(keys)
        worker.open.clear()
        self._fail([self._pending[key] for key in sorted(lost) if key in self._pending], error)
        not_begun += self._dispatcher.lost(worker)
        for pending in not_begun:
            pending.worker = None
        self._carry_out(self._scheduler.requeue(not_begun, time.monotonic_ns()))

    def _fail(self, items: Sequence[Pending], error: NaiadError, reason: Reason = Reason.OTHER) -> None:
        now = time.monotonic_ns()
        for pending in items:
            if self._pending.pop(pending.key, None) is None:
                continue
            self._statistics.failed(now - pending.queued, reason)
            response = InferResponse(self.config.name, self.version, pending.request.request_id, error=error)
            pending.sink.send(response, True)


def depth_for(execution_ns: int) -> int:
    """How many requests an instance may hold whose execute takes so long."""
    if execution_ns >= _AHEAD_NS:
        return 1
    return _MOST_AHEAD if execution_ns <= _LEAST_PACE_NS else _AHEAD_NS // execution_ns


def _cancelled() -> NaiadError:
    return NaiadError("Request was cancelled", code=Code.CANCELLED)

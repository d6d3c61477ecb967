"""One version of a model that serves: its instances, its queue, its requests in flight.

The scheduler decides, this module carries out. Everything runs on the event loop's thread and nothing here waits:
a request goes from `submit` to the guest, and its answer from the guest to the sink, in one call each.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable, Sequence

from naiad.config.model import ModelConfig
from naiad.config.render import to_json
from naiad.engine.check import RequestCheck, prefix
from naiad.engine.instance import Instance
from naiad.engine.pending import Pending
from naiad.engine.statistics import Statistics
from naiad.errors import Code, GuestDiedError, ModelError, NaiadError, NotReadyError, OutOfMemoryError
from naiad.lifecycle.restart import RestartPolicy
from naiad.logs import GuestName, log_guest_line, log_guest_record
from naiad.protocol.inference import InferRequest, InferResponse, Sink
from naiad.protocol.metadata import ModelMetadata, ModelStatistics, TensorMetadata
from naiad.scheduling.fifo import Dispatch, FifoScheduler
from naiad.workers.exchange import Answer, Interface
from naiad.workers.launch import LaunchSpec
from naiad.workers.worker import Batch, Services, Worker

logger = logging.getLogger("naiad.engine")

_AHEAD_NS = 1_000_000
_MOST_AHEAD = 16
_UNKNOWN_PACE_NS = 1_000_000_000
"""An instance may hold as many requests as it works off in a millisecond (see `scheduling.fifo`)."""

_ALL_RESPONSES = 1 << 40

_numbers = itertools.count(1)
_LOG_LEVELS = {0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR, 3: logging.DEBUG}


class ModelVersion:
    """A loaded version; the owner of its instances and workers.

    Attributes:
        config: Its effective configuration.
        version: Its version number.
        number: Which of all versions ever loaded this is: tells two loads of one version apart.
        instances: Its instances.
        reason: Why it can serve no more; empty while it can.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        specs: Iterable[LaunchSpec],
        policy: RestartPolicy,
        services: Services,
    ) -> None:
        self.config = config
        self.version = version
        self.number = next(_numbers)
        self.reason = ""
        self.config_json = to_json(config.message)
        self.metadata = _metadata(config, version)
        self._check = RequestCheck(config)
        self._statistics = Statistics()
        interface = Interface(
            config.name,
            version,
            [tensor.name for tensor in config.inputs],
            [tensor.name for tensor in config.outputs],
        )
        self.instances = [Instance(spec, self, interface, policy, services) for spec in specs]
        self._scheduler: FifoScheduler[Worker, Pending] = FifoScheduler()
        self._pending: dict[int, Pending] = {}
        self._keys = itertools.count(1)
        self._reshaped = {tensor.name: tensor for tensor in config.outputs if tensor.reshape is not None}
        self._pace = _UNKNOWN_PACE_NS  # the longest execute of late: falls slowly, rises at once
        self._idle_tidied = True
        self._busy = False

    def __repr__(self) -> str:
        return (
            f"<ModelVersion '{self.config.name}' {self.version} ready={self.is_ready()} "
            f"instances={len(self.instances)} in-flight={len(self._pending)}>"
        )

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all instances; if one fails, none stays.

        Raises:
            NaiadError: The first failure.
        """
        try:
            results = await asyncio.gather(*(instance.start() for instance in self.instances), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        except BaseException:
            await asyncio.gather(*(instance.stop(0) for instance in self.instances))
            raise
        for instance in self.instances:
            if instance.worker is not None:  # else it died while others started, and is being restarted
                self._scheduler.add(instance.worker)

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds, then finalize and end all guests."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._pending and loop.time() < deadline and self.is_ready():
            await asyncio.sleep(0.01)
        self.reason = self.reason or "it is being unloaded"
        await asyncio.gather(*(instance.stop(max(deadline - loop.time(), 0.1)) for instance in self.instances))
        self._fail(list(self._pending.values()), NotReadyError(f"model '{self.config.name}' is being unloaded"))

    def is_ready(self) -> bool:
        """Whether an instance can serve now."""
        return any(instance.worker is not None for instance in self.instances)

    def are_all_ready(self) -> bool:
        """Whether every instance can serve now: what strict readiness asks (CORE src/backend_model.cc)."""
        return all(instance.worker is not None for instance in self.instances)

    def statistics(self) -> ModelStatistics:
        """Its statistics as they are now."""
        return self._statistics.value(self.config.name, str(self.version))

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""
        return len(self._scheduler.waiting)

    def tidy(self) -> None:
        """Called now and then: hand blocks back, and after a pause free pages too."""
        was_busy, self._busy = self._busy, bool(self._pending)
        idle = not was_busy and not self._busy and not self._idle_tidied
        for instance in self.instances:
            if instance.worker is not None:
                instance.worker.tidy(idle=idle)
        if idle:
            self._idle_tidied = True

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
            NotReadyError: If the version cannot serve any more.
        """
        try:
            if self.reason:
                raise NotReadyError(f"{prefix(request)}model '{self.config.name}' cannot serve: {self.reason}")
            pattern = request.pattern
            if pattern is None or pattern.checked_by != self.number:
                batch_size = self._check_anew(request)
            else:
                batch_size = pattern.batch_size
        except NaiadError:
            self._statistics.failed(0)
            raise
        key = next(self._keys)
        pending = self._pending[key] = Pending(key, request, sink, batch_size)
        self._idle_tidied = False
        self._carry_out(self._scheduler.enqueue(pending, alone=alone))
        return key

    def _check_anew(self, request: InferRequest) -> int:
        batch_size = self._check.check(request)
        if request.pattern is not None and self._check.is_repeatable(request):
            request.pattern.checked_by, request.pattern.batch_size = self.number, batch_size
        return batch_size

    def cancel(self, key: int) -> None:
        """Take a request back: out of the queue, or tell its guest."""
        pending = self._pending.get(key)
        if pending is None:
            return
        if pending.worker is not None:
            pending.worker.cancel([key])
        else:
            self.withdraw(key, NaiadError("Request was cancelled", code=Code.CANCELLED))

    def withdraw(self, key: int, error: NaiadError) -> None:
        """Answer a request that waits for an instance with *error*."""
        pending = self._pending.get(key)
        if pending is not None and self._scheduler.withdraw(pending):
            self._fail([pending], error)

    def is_waiting(self, key: int) -> bool:
        """Whether the request waits for an instance."""
        pending = self._pending.get(key)
        return pending is not None and pending.worker is None

    def servers_of(self, key: int) -> Sequence[Worker]:
        """The guests any of which could answer a request; none if one is being started that may."""
        pending = self._pending.get(key)
        if pending is None:
            return ()
        if pending.worker is not None:
            return (pending.worker,)
        workers = [instance.worker for instance in self.instances if not instance.reason]
        return [] if None in workers else [worker for worker in workers if worker is not None]

    def taken(self, key: int, count: int) -> None:
        """Note that responses have left for the client; its model may be held back until they have."""
        pending = self._pending.get(key)
        if pending is not None:
            pending.has_left(count)

    def taken_all(self, key: int) -> None:
        """Note that no response of a request will ever wait for its client again."""
        pending = self._pending.get(key)
        if pending is not None and pending.worker is not None:
            pending.worker.credit(key, _ALL_RESPONSES)

    def _carry_out(self, decisions: Sequence[Dispatch[Worker, Pending]]) -> None:
        for worker, items in decisions:
            now = time.monotonic_ns()
            for pending in items:
                pending.laid_out = now
                pending.worker = worker
            try:
                worker.execute([(pending.key, pending.request) for pending in items])
            except OutOfMemoryError as error:
                self._no_room(worker, items, error)

    def _no_room(self, worker: Worker, items: tuple[Pending, ...], error: OutOfMemoryError) -> None:
        """Wait for the batch before, whose end frees room; fail only what does not fit into an empty segment."""
        if not worker.batches:
            self._fail(items, error)
            self._carry_out(self._scheduler.finished(worker))
            return
        for pending in items:
            pending.worker = None
        self._scheduler.undo(worker, items)

    # -- reports of workers -------------------------------------------------------------------------------------

    def answered(self, worker: Worker, answer: Answer, started: int, ended: int) -> None:  # noqa: ARG002
        """Pass a response on to the request's sink."""
        pending = self._pending.get(answer.key)
        if pending is None:
            return  # its guest was given up meanwhile
        if answer.again:
            self._again(pending)
            return
        response = answer.response
        if response is not None:
            response.request_id = pending.request.request_id
            if self.config.decoupled:
                pending.will_leave(response)
            if self._reshaped and response.outputs:
                self._reshape(response)
        if answer.final:
            del self._pending[answer.key]
            now = time.monotonic_ns()
            if response is not None and response.error is not None:
                self._statistics.failed(now - pending.queued)
            else:
                self._statistics.succeeded(pending.batch_size, pending.queued, pending.laid_out, started, ended, now)
        pending.sink.send(response, answer.final)

    def _again(self, pending: Pending) -> None:
        """The model wants a request once more, which only iterative sequences give it."""
        message = (
            f"model '{self.config.name}' rescheduled a request, which takes sequence_batching's iterative_sequence"
        )
        logger.error("%s", message)
        self._fail([pending], ModelError(message))

    def batch_done(self, worker: Worker, batch: Batch, started: int, ended: int) -> None:
        """Give the instance its next work."""
        self._statistics.executed(len(batch.keys), batch.sent, started, ended, time.monotonic_ns())
        self._pace = max(ended - started, self._pace - (self._pace >> 3))
        self._scheduler.set_depth(worker, depth_for(self._pace))
        self._carry_out(self._scheduler.finished(worker))

    def died(self, worker: Worker, error: GuestDiedError) -> None:
        """Fail what the guest worked on, put back what it had not begun, and see to a new guest."""
        self._scheduler.remove(worker)
        batches = list(worker.batches.values())
        worker.batches.clear()
        if batches and batches[0].sent:
            del batches[0]  # it was being executed
        keys = [key for batch in batches for key in batch.keys]
        not_begun = tuple(self._pending[key] for key in keys if key in worker.open and key in self._pending)
        lost = worker.open.difference(keys)
        worker.open.clear()
        self._fail([self._pending[key] for key in sorted(lost) if key in self._pending], error)
        for pending in not_begun:
            pending.worker = None
        self._carry_out(self._scheduler.put_back(not_begun))
        for instance in self.instances:
            if instance.worker is worker:
                instance.died(error)

    def restarted(self, instance: Instance) -> None:
        """A new guest may take work."""
        if instance.worker is not None:
            self._carry_out(self._scheduler.add(instance.worker))

    def gave_up(self, instance: Instance) -> None:
        """When the last instance is given up, nothing that waits will ever be served."""
        if all(other.reason for other in self.instances):
            self.reason = instance.reason
            self._fail(list(self._scheduler.drain()), NotReadyError(self.reason))

    def said(self, worker: Worker, level: int, file: str, line: int, message: str) -> None:
        """Log what the model logged, under the model's own file and line."""
        log_guest_record(self._guest(worker), _LOG_LEVELS.get(level, logging.INFO), file, line, message)

    def printed(self, worker: Worker, stream: str, line: str) -> None:
        """Log a line the guest wrote to stdout or stderr."""
        log_guest_line(self._guest(worker), stream, line)

    def _guest(self, worker: Worker) -> GuestName:
        return GuestName(self.config.name, self.version, worker.spec.name, worker.pid)

    def _fail(self, items: Sequence[Pending], error: NaiadError) -> None:
        now = time.monotonic_ns()
        for pending in items:
            if self._pending.pop(pending.key, None) is None:
                continue
            self._statistics.failed(now - pending.queued)
            response = InferResponse(self.config.name, self.version, pending.request.request_id, error=error)
            pending.sink.send(response, True)

    def _reshape(self, response: InferResponse) -> None:
        """Outputs with a `reshape` go out with the shape the configuration promises."""
        for tensor in response.outputs:
            config = self._reshaped.get(tensor.name)
            if config is not None:
                batched = self.config.max_batch_size > 0
                leading = tensor.shape[:1] if batched else ()
                variable = iter(
                    [d for d, e in zip(tensor.shape[len(leading) :], config.reshape or (), strict=False) if e == -1]
                )
                tensor.shape = leading + tuple(next(variable, 1) if d == -1 else d for d in config.dims)


def depth_for(execution_ns: int) -> int:
    """How many requests an instance may hold whose execute takes so long."""
    return max(1, min(_MOST_AHEAD, _AHEAD_NS // max(execution_ns, 1)))


def _metadata(config: ModelConfig, version: int) -> ModelMetadata:
    leading = (-1,) if config.max_batch_size > 0 else ()
    inputs, outputs = (
        tuple(
            TensorMetadata(name=tensor.name, datatype=tensor.datatype.name, shape=leading + tensor.dims)
            for tensor in tensors
        )
        for tensors in (config.inputs, config.outputs)
    )
    return ModelMetadata(
        name=config.name,
        versions=(str(version),),
        platform=config.platform or config.backend,
        inputs=inputs,
        outputs=outputs,
    )

"""One loaded version of a model: its guests' life, and the objects that handle its requests.

- `Admission` checks a request and gives it a key.
- `RequestTracker` has the scheduler, the requests in flight and the statistics.
- `Instance` has one guest at a time and restarts it.
- `WarmUp` has a new guest execute the samples before it serves.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Sequence

from naiad.config.model.model_config import ModelConfig, instance_groups
from naiad.config.model.render import to_json
from naiad.engine.loading.warmup import WarmUp, WarmupSample
from naiad.engine.response_cache import CachedResponses, ResponseCache
from naiad.engine.served import metadata_of, version_numbers
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.serving.instance import Instance
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.serving.tracker import RequestTracker
from naiad.engine.statistics.counters import Statistics
from naiad.errors import GuestExitedError, NaiadError, NotReadyError
from naiad.lifecycle.restart import RestartPolicy
from naiad.logs import GuestName, log_guest_line, log_guest_record
from naiad.protocol.metadata import ModelStatistics
from naiad.resolution.decision import Resolution
from naiad.scheduling.sequences.states import StateTensor
from naiad.workers.exchange import ModelInterface
from naiad.workers.launch import LaunchSpec
from naiad.workers.worker import GuestServices, Worker

_LOG_LEVELS = {0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR, 3: logging.DEBUG}
_STOP_POLL_SECONDS = 0.01
_LEAST_STOP_SECONDS = 0.1
"""What `finalize` may take even if requests used up the time."""


class ModelVersion:
    """A loaded version. Implements `ServedVersion`, `InstanceOwner` and `WorkerOwner`.

    Attributes:
        config: Its effective configuration.
        config_json: The same as the reference prints it.
        metadata: Its inputs and outputs.
        version: Its version number.
        number: Number of this load among all loads of all versions: the plan's generation.
        instances: Its instances.
        resolution: What runs it; None until the loader sets it.
        submit: See `ServedVersion.submit`.
        on_response: See `WorkerOwner`, also for `on_batch_done`, `is_refill_urgent` and `trace_of`.
    """

    resolution: Resolution | None = None

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        specs: Iterable[LaunchSpec],
        policy: RestartPolicy,
        services: GuestServices,
        samples: Sequence[WarmupSample] = (),
        limiter: SharedRateLimiter | None = None,
        states: Sequence[StateTensor] = (),
    ) -> None:
        """Make a version whose guests are not started yet.

        Args:
            config: Its effective configuration.
            version: Its version number.
            specs: How to start each instance's guest.
            policy: How often guests are restarted.
            services: What the model may use of the server.
            samples: Warm-up samples.
            limiter: The server's rate limiter; None for none.
            states: States that its sequences keep.
        """
        self.config = config
        self.version = version
        self.number = next(version_numbers)
        self.config_json = to_json(config.message)
        self.metadata = metadata_of(config, version)
        keys = itertools.count(1)
        self._warm_up = WarmUp(samples, keys)
        self._tracker = tracker = RequestTracker(config, version, keys, self._warm_up, limiter, states)
        plan = compile_plan(config, version, self.number)
        self._admission = Admission(plan, tracker.start, keys)
        # The request path calls the collaborating objects directly: a method here would be a call per request more.
        self.submit = self._admission.submit
        self.on_response = tracker.on_response
        self.on_batch_done = tracker.on_batch_done
        self.is_refill_urgent = tracker.is_refill_urgent
        self.trace_of = tracker.trace_of
        specs = tuple(specs)
        self._leases = {lease for spec in specs for lease in (spec.prewarm, spec.lease) if lease is not None}
        interface = ModelInterface(plan)
        self.instances = [Instance(spec, self, interface, policy, services) for spec in specs]
        passive = {name for name, group in instance_groups(config).items() if group.passive}
        self._active = [instance for instance in self.instances if instance.name not in passive]
        self._was_busy = False
        self._is_started = False

    def __repr__(self) -> str:
        return (
            f"<ModelVersion '{self.config.name}' {self.version} ready={self.is_ready()} "
            f"instances={len(self.instances)} in-flight={len(self._tracker)}>"
        )

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Why it cannot serve any more; empty while it can."""
        return self._admission.reason

    async def start(self) -> None:
        """Start all instances; if one fails, stop them all.

        Raises:
            NaiadError: The first failure.
        """
        try:
            results = await asyncio.gather(*(instance.start() for instance in self.instances), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            self._is_started = True
            for instance in self._active:
                if instance.worker is not None:  # else it exited while others started, and is being restarted
                    self._tracker.dispatcher.add(instance.worker)
        except BaseException:
            self._tracker.dispatcher.close()
            await asyncio.gather(*(instance.stop(0) for instance in self.instances))
            self._release_environment()
            raise

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds, except cancelled ones; then end all guests."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._tracker.has_uncancelled() and loop.time() < deadline and self.is_ready():
            await asyncio.sleep(_STOP_POLL_SECONDS)
        self._admission.reason = self.reason or "it is being unloaded"
        remaining = max(deadline - loop.time(), _LEAST_STOP_SECONDS)
        await asyncio.gather(*(instance.stop(remaining) for instance in self.instances))
        self._release_environment()
        self._tracker.dispatcher.close()
        self._tracker.fail_all(NotReadyError(f"model '{self.config.name}' is being unloaded"))

    def _release_environment(self) -> None:
        """Release the reader locks: no guest will start in the environment any more, so it may be evicted."""
        for lease in self._leases:
            lease.release()

    def is_ready(self) -> bool:
        """Whether an instance can serve now."""
        return any(instance.worker is not None for instance in self._active)

    def are_all_ready(self) -> bool:
        """Whether every instance can serve now: what strict readiness asks (CORE src/backend_model.cc)."""
        return all(instance.worker is not None for instance in self.instances)

    # -- statistics ---------------------------------------------------------------------------------------------

    @property
    def totals(self) -> Statistics:
        """What is counted of its requests."""
        return self._tracker.statistics

    def statistics(self) -> ModelStatistics:
        """Its statistics as they are now."""
        return self.totals.value(self.config.name, str(self.version), self.pending_count)

    @property
    def pending_count(self) -> int:
        """Number of requests that wait for an instance."""
        return self._tracker.dispatcher.waiting_count

    # -- memory -------------------------------------------------------------------------------------------------

    def release_idle_memory(self) -> None:
        """Return output blocks to the guests and, after a pause in traffic, free unused pages; called periodically."""
        was_busy, self._was_busy = self._was_busy, len(self._tracker) > 0
        is_idle = not was_busy and not self._was_busy and self._tracker.trims_due > 0
        for instance in self.instances:
            if instance.worker is not None:
                instance.worker.release_idle_memory(idle=is_idle)
        if is_idle:
            self._tracker.trims_due -= 1

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        """Room for a request's body in the input segment of the least loaded instance. See `EngineDoor.reserve_input`.

        None with schedulers that batch. They lay the inputs of several requests side by side and may move a request
        to another instance, so the bytes would have to be copied anyway.
        """
        if self._tracker.is_batching:
            return None
        workers = [instance.worker for instance in self._active if instance.worker is not None]
        return min(workers, key=_load).reserve_input(size, ahead) if workers else None

    # -- requests -----------------------------------------------------------------------------------------------

    def keep_responses(self, cache: ResponseCache) -> None:
        """Answer requests from *cache* where it has their response."""
        tracker = self._tracker
        self._admission.cache = CachedResponses(
            cache, self.config, self.version, self.number, tracker.statistics, tracker.order
        )

    def cancel(self, key: int) -> None:
        """See `ServedVersion`."""
        self._tracker.cancel(key)

    def reject_waiting(self, key: int, error: NaiadError) -> None:
        """See `ServedVersion`."""
        self._tracker.reject_waiting(key, error)

    def confirm_sent(self, key: int, count: int) -> None:
        """See `ServedVersion`."""
        self._tracker.confirm_sent(key, count)

    def waive_flow_control(self, key: int) -> None:
        """See `ServedVersion`."""
        self._tracker.waive_flow_control(key)

    def finish_sequences(self) -> int:
        """See `ServedVersion`."""
        return self._tracker.finish_sequences()

    def has_sequence(self, correlation_id: int | str) -> bool:
        """See `ServedVersion`."""
        return self._tracker.has_sequence(correlation_id)

    def is_waiting(self, key: int) -> bool:
        """See `ServedVersion`."""
        pending = self._tracker.find(key)
        return pending is not None and pending.worker is None

    def waits_of(self, key: int) -> Sequence[Sequence[Worker]]:
        """See `ServedVersion`. A request waits for its guest, or for any guest while it is queued."""
        pending = self._tracker.find(key)
        if pending is None:
            return ()
        if pending.worker is not None:
            return ((pending.worker,),)
        workers = [instance.worker for instance in self._active if not instance.reason]
        # A guest that is being started will take the request: then no set of guests blocks it.
        return ([] if None in workers else [worker for worker in workers if worker is not None],)

    # -- callbacks of instances and workers -----------------------------------------------------------------------

    def on_exit(self, worker: Worker, error: GuestExitedError) -> None:
        """Fail what the guest was executing, requeue what it had not begun, and have its instance start a new one."""
        self._tracker.on_guest_exit(worker, error)
        for instance in self.instances:
            if instance.worker is worker:
                instance.on_exit(error)

    def on_restart(self, instance: Instance) -> None:
        """Let the new guest take work."""
        if instance.worker is not None and self._is_started and instance in self._active:
            self._tracker.dispatcher.add(instance.worker)

    async def warm_up(self, worker: Worker) -> None:
        """Have a new guest execute the samples; guests of passive instances serve no requests and need none."""
        if worker.spec.name in [instance.name for instance in self._active]:
            await self._warm_up.run(worker)

    def on_restarts_exhausted(self, instance: Instance) -> None:
        """After the last active instance has stopped restarting, reject everything that waits."""
        if all(other.reason for other in self._active):
            self._admission.reason = instance.reason
            self._tracker.fail_waiting(NotReadyError(instance.reason))

    def on_log_record(self, worker: Worker, level: int, file: str, line: int, message: str) -> None:
        """Log what the model logged, under the model's own file and line."""
        log_guest_record(self._guest(worker), _LOG_LEVELS.get(level, logging.INFO), file, line, message)

    def on_output_line(self, worker: Worker, stream: str, line: str) -> None:
        """Log a line the guest wrote to stdout or stderr."""
        log_guest_line(self._guest(worker), stream, line)

    def _guest(self, worker: Worker) -> GuestName:
        return GuestName(self.config.name, self.version, worker.spec.name, worker.pid)


def _load(worker: Worker) -> int:
    return len(worker.batches)

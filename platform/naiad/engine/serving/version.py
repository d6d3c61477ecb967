"""One loaded version of a model: its guests' life, and the objects that handle its requests.

- `Admission` checks a request and gives it a key.
- `RequestsInFlight` has the scheduler, the requests in flight and the statistics.
- `Instance` has one guest at a time and restarts it.
- `WarmUp` has a new guest execute the samples before it serves.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from naiad_stub.load_spec import NativeCode

from naiad.config.model.model_config import ModelConfig, instance_groups
from naiad.core import clock
from naiad.core.errors import GuestExitedError, NotReadyError
from naiad.core.gathering import finish_all
from naiad.engine.lifecycle.process_placement import Placement
from naiad.engine.lifecycle.recovery import RecoveryTrials
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.lifecycle.scaling import InstanceLoad
from naiad.engine.open_request import OpenRequest
from naiad.engine.response_cache import CachedResponses, ResponseCache
from naiad.engine.scheduling.sequences.states import StateTensor
from naiad.engine.served import metadata_of, version_numbers
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.serving.device_use import device_use, usable_by_all
from naiad.engine.serving.forwarding import Forwarding
from naiad.engine.serving.instance import Instance
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.serving.readiness import describe_stalls
from naiad.engine.serving.replicas import ReplicaCounts, Replicas, Spreading, is_movable
from naiad.engine.serving.requests_in_flight import RequestsInFlight
from naiad.engine.serving.version_log import VersionLog
from naiad.engine.serving.warmup import WarmUp, WarmupSample
from naiad.engine.statistics.counters import Statistics
from naiad.guests.exchange import ModelInterface
from naiad.guests.launch import EnvironmentLease, LaunchSpec
from naiad.guests.worker import GuestServices, Worker
from naiad.models.resolution.decision import Resolution
from naiad.protocol.metadata import InstanceStatus, MemoryUse, ModelCondition, ModelStatistics

logger = logging.getLogger("naiad.engine")

_STOP_POLL_SECONDS = 0.01
_LEAST_STOP_SECONDS = 0.1  # what `finalize` may take even if requests used up the time

# How long a version that stops waits for requests that were cancelled. Their models may free resources meanwhile; but
# nobody gets their responses, and a model that does not look for cancellation may execute them for hours.
_CANCELLED_SECONDS = 5.0

# How long other processes may take to learn that another version serves; they usually need milliseconds.
_SHARED_SECONDS = 5.0


class ModelVersion:
    """A loaded version.

    Implements `ServedVersion`, `SequenceOwner`, `DirectAccess` and `InstanceDelegate`.
    """

    resolution: Resolution | None = None  # what runs it; None until the loader sets it
    # Where its instances would be with another configuration; None in replicas.
    place: Callable[[ModelConfig], Placement] | None = None

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
        number: int | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        """Make a version whose guests are not started yet; without *number*, it is a new load."""
        self.config = config
        self.version = version
        self._services = services
        # Of this load among all loads of all versions: the plan's generation.
        self.number = next(version_numbers) if number is None else number
        self.metadata = metadata_of(config, version)
        keys = itertools.count(1)
        self._warm_up = WarmUp(samples, keys)
        self.requests = self._in_flight = in_flight = RequestsInFlight(
            config, version, keys, self._warm_up, self._takers_of, limiter, states
        )
        plan = compile_plan(config, version, self.number)
        self._admission = Admission(plan, in_flight.start, in_flight.statistics)
        self.replicas = replicas  # its instances in other processes; None if this process has all
        spreading = None
        if replicas is not None:
            spreading = Spreading(self._admission, in_flight, replicas, lambda: self.serving_count)
        self._spreading = spreading
        # Requests go straight to what admits them: a method here would be a call per request more.
        self.accept = self._admission.admit if spreading is None else spreading.spread
        self.log = VersionLog(config.name, version)
        specs = tuple(specs)
        native = [spec.load.code for spec in specs if isinstance(spec.load.code, NativeCode)]
        if native:
            in_flight.count_reports()
            in_flight.lanes = max(len(code.lanes) or 1 for code in native)
        self.device = device_use(config, is_native=bool(native))
        self.direct = self
        self.forwarding = None
        if in_flight.forwarding_scheduler is not None:
            self.forwarding = Forwarding(self._admission, in_flight)
        self.shared_inputs = next((spec.inputs for spec in specs), None)
        self._leases = {lease for spec in specs for lease in (spec.prewarm, spec.lease) if lease is not None}
        interface = ModelInterface(plan)

        def make_instance(spec: LaunchSpec) -> Instance:
            return Instance(spec, self, interface, policy, services)

        self._make_instance = make_instance
        self.instances = [self._make_instance(spec) for spec in specs]
        # Instances that are being added, and are not in `instances` yet, or being removed, and are not there any more.
        self._changing: list[Instance] = []
        self._passive = _passive_names(config)
        self._active = [instance for instance in self.instances if instance.name not in self._passive]
        self.recovering = asyncio.Lock()  # held by the instance that tries a guest after it was given up
        self._trials = RecoveryTrials(policy.window)
        self._was_busy = False
        self._is_started = self._is_stopping = self._is_ending = False
        self.takes_at_once = in_flight.takes_at_once
        # Called when one of its instances can serve again, or cannot any more.
        self.on_change: Callable[[], None] = lambda: None
        # Called when one of its instances takes no more requests: what waited for any of several may now wait only for
        # some that wait themselves.
        self.on_instance_lost: Callable[[], None] = lambda: None
        if replicas is not None:
            replicas.log, replicas.is_decoupled = self.log, config.decoupled
            in_flight.observe_load(replicas.note_load)
            self.on_change = lambda: replicas.note_instances(self.serving_count)

    def __repr__(self) -> str:
        return (
            f"<ModelVersion '{self.config.name}' {self.version} ready={self.is_ready()} "
            f"instances={len(self.instances)} in-flight={len(self._in_flight)}>"
        )

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def row(self) -> int | None:
        return None if self.replicas is None else self.replicas.row

    def hold(self, leases: Iterable[EnvironmentLease]) -> None:
        """Hold the environment of instances in other processes, too, until the version ends."""
        self._leases.update(leases)

    def observe_load(self, note: Callable[[int], None]) -> None:
        self._in_flight.observe_load(note)

    @property
    def serving_count(self) -> int:
        return sum(instance.is_serving for instance in self._active)

    @property
    def typical(self) -> int:
        """How long `execute` usually takes, in nanoseconds, if it has replicas or is one."""
        return self._in_flight.typical

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def reason(self) -> str:
        reason = self._admission.reason
        return "" if reason and self._is_elsewhere else reason

    @property
    def _is_elsewhere(self) -> bool:
        return self.replicas is not None and not self._is_stopping and self.replicas.is_serving()

    @property
    def is_lost(self) -> bool:
        return bool(self.reason) and self._trials.is_lost

    async def start(self) -> None:
        """Start all instances; if one fails, stop them all, and raise the first failure."""
        try:
            await self._start_everywhere()
            self._is_started = True
            for instance in self._active:
                if instance.worker is not None:  # else it exited while others started, and is being restarted
                    self._in_flight.add_guest(instance.worker)
            self.on_change()
        except BaseException:
            self._in_flight.dispatcher.close()
            await asyncio.gather(*(instance.stop(0) for instance in self.instances))
            if self.replicas is not None:
                await self.replicas.stop(0)
            self._release_environment()
            raise

    async def _start_everywhere(self) -> None:
        if self.replicas is None:
            await self._start_all(self.instances)
            return
        await finish_all((self._start_all(self.instances), self.replicas.start()))

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds, cancelled ones within five; then end all guests."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._is_ending = True
        if self._spreading is not None:
            self._spreading.close()
        elsewhere = None if self.replicas is None else asyncio.ensure_future(self.replicas.stop(timeout))
        await self.finish_requests(timeout)
        self._is_stopping = True
        self._admission.reason = self.reason or "it is being unloaded"
        await asyncio.gather(*(self._stop_instance(instance, deadline) for instance in self.instances))
        if elsewhere is not None:
            await elsewhere
        self._release_environment()
        self._in_flight.dispatcher.close()
        self._in_flight.fail_all(NotReadyError(f"model '{self.config.name}' is being unloaded"))

    async def _stop_instance(self, instance: Instance, deadline: float) -> None:
        """Finalize the model of an instance and end its guest; kill it if it still executes only cancelled requests."""
        loop, worker = asyncio.get_running_loop(), instance.worker
        start = loop.time()
        until = min(deadline, start + _CANCELLED_SECONDS)
        while worker is not None and self._has_only_cancelled(worker):
            if loop.time() >= until:
                logger.warning(
                    "'%s' still executes requests that were cancelled and is killed after %.3g s",
                    instance.name,
                    until - start,
                )
                await instance.stop(0)
                return
            await asyncio.sleep(_STOP_POLL_SECONDS)
        await instance.stop(max(deadline - loop.time(), _LEAST_STOP_SECONDS))

    def _has_only_cancelled(self, worker: Worker) -> bool:
        return bool(worker.open) and not self._in_flight.is_busy(worker)

    async def change_instances(self, config: ModelConfig, specs: Iterable[LaunchSpec], kept: Collection[str]) -> None:
        """Add the instances of *specs* that are new; then let those get no more work that are neither new nor *kept*.

        No instance is added or removed unless all new ones have started. `end_removed` ends the removed ones.
        """
        assert self.replicas is None
        by_name, passive = {instance.name: instance for instance in self.instances}, self._passive
        now = [(by_name[spec.name] if spec.name in kept else self._make_instance(spec), spec) for spec in specs]
        added = [instance for instance, _ in now if instance.name not in kept]
        self._passive = _passive_names(config)  # decides whether a new guest is warmed up
        self._changing += added
        try:
            if added:  # else nothing is awaited: an instance that is removed because it is not in use must stay so
                await self._start_all(added)
            if self._is_ending:
                raise NotReadyError(f"model '{self.config.name}' is being unloaded")
        except BaseException:
            self._passive = passive
            self._changing = [instance for instance in self._changing if instance not in added]
            await asyncio.gather(*(instance.stop(0) for instance in added))
            raise
        self._switch(config, now, added)

    def _switch(
        self, config: ModelConfig, now: Sequence[tuple[Instance, LaunchSpec]], added: Sequence[Instance]
    ) -> None:
        stays = [instance for instance, _ in now]
        removed = [instance for instance in self.instances if instance not in stays]
        self._changing = [instance for instance in self._changing if instance not in added] + removed
        self.config = config
        self._in_flight.follow_groups(config)
        for instance, spec in now:
            instance.spec = spec
        self.instances = stays
        self._active = [instance for instance in self.instances if instance.name not in self._passive]
        for instance in added:
            if instance.worker is not None and instance in self._active:
                self._in_flight.add_guest(instance.worker)
        for instance in removed:
            if instance.worker is not None:
                self._in_flight.retire_guest(instance.worker)
        self.on_change()
        if removed:
            self.on_instance_lost()
        listed = [", ".join(each.name for each in group) or "none" for group in (added, removed)]
        logger.info("instances of '%s' version %d: added: %s; removed: %s", config.name, self.version, *listed)

    def is_in_use(self, names: Collection[str]) -> bool:
        workers = [each.worker for each in self.instances if each.name in names and each.worker is not None]
        return any(self._in_flight.is_in_use(worker) for worker in workers)

    def instance_load(self) -> InstanceLoad:
        used = [each.worker is not None and self._in_flight.is_in_use(each.worker) for each in self.instances]
        removable = next((number for number, is_used in enumerate(reversed(used)) if is_used), len(used))
        return InstanceLoad(
            count=len(used), in_use=sum(used), waited=self._in_flight.oldest_wait_ns() / 1e9, removable=removable
        )

    async def end_removed(self, timeout: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        removed = [instance for instance in self._changing if instance not in self.instances]
        await asyncio.gather(*(self._end_removed(instance, deadline) for instance in removed))
        self._changing = [instance for instance in self._changing if instance not in removed]

    async def finish_requests(self, timeout: float) -> None:
        """Let all requests finish within *timeout* seconds; cancelled ones are not waited for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._in_flight.has_uncancelled() and loop.time() < deadline and self.is_ready():
            await asyncio.sleep(_STOP_POLL_SECONDS)

    async def _end_removed(self, instance: Instance, deadline: float) -> None:
        loop, worker = asyncio.get_running_loop(), instance.worker
        while worker is not None and self._in_flight.is_busy(worker) and loop.time() < deadline:
            await asyncio.sleep(_STOP_POLL_SECONDS)
        await self._stop_instance(instance, deadline)
        if worker is not None:
            self._in_flight.forget_guest(worker)
            self._in_flight.fail_guest(worker, NotReadyError(f"instance '{instance.name}' was removed"))

    async def _start_all(self, instances: Sequence[Instance]) -> None:
        """Start instances; raises the first failure when all have ended."""
        await finish_all(instance.start() for instance in instances)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in progress: no request, cancelled ones included, no sequence, no call of its guests."""
        if len(self._in_flight) or self._in_flight.open_sequences or self._changing:
            return False
        workers = [instance.worker for instance in self.instances if instance.worker is not None]
        return not any(self._services.is_calling(worker) for worker in workers)

    def is_finishing_requests(self) -> bool:
        if self._changing:
            return any(each.worker is not None and self._in_flight.is_busy(each.worker) for each in self._changing)
        is_busy_elsewhere = self.replicas is not None and self.replicas.in_flight > 0
        return is_busy_elsewhere or self._in_flight.has_uncancelled() or self._in_flight.open_sequences > 0

    def _release_environment(self) -> None:
        """Release the reader locks: no guest will start in the environment any more, so it may be evicted.

        A little later, the inputs that other processes share with the guests are released, too: such a process may
        have written a request there before it learned that another version serves.
        """
        for lease in self._leases:
            lease.release()
        if self.shared_inputs is not None:
            asyncio.get_running_loop().call_later(_SHARED_SECONDS, self.shared_inputs.close)

    def is_ready(self) -> bool:
        return any(instance.is_serving for instance in self._active) or self._is_elsewhere

    def are_all_ready(self) -> bool:
        """Whether every instance can serve now: what strict readiness asks (CORE src/backend_model.cc)."""
        is_whole_here = all(instance.is_serving for instance in self.instances)
        return is_whole_here and (self.replicas is None or self.replicas.are_all_serving())

    # -- statistics ---------------------------------------------------------------------------------------------

    @property
    def totals(self) -> Statistics:
        return self._in_flight.statistics

    def statistics(self) -> ModelStatistics:
        counts = self.counts() if self.replicas is None else _sum_of(self.counts(), self.replicas.counts())
        stalled = describe_stalls(self._statuses_everywhere())
        return counts.statistics.value(
            self.config.name,
            str(self.version),
            counts.pending,
            counts.memory,
            counts.running,
            self._condition(is_refusing=bool(counts.refused), is_stalled=bool(stalled)),
            counts.refused,
            stalled,
        )

    def counts(self) -> ReplicaCounts:
        pending = self.pending_count
        running = max(len(self._in_flight) - pending, 0)
        refused = self._in_flight.fatal.explain() if self._in_flight.fatal else ""
        return ReplicaCounts(self.totals, pending, running, self._memory_usage(), refused)

    def statuses(self) -> list[InstanceStatus]:
        of = self.config.name, self.version, self.totals.namespace
        return [instance.status(*of) for instance in self.instances]

    def _statuses_everywhere(self) -> Sequence[InstanceStatus]:
        return [*self.statuses(), *(() if self.replicas is None else self.replicas.statuses())]

    def _condition(self, *, is_refusing: bool, is_stalled: bool) -> ModelCondition:
        if not self.is_ready():
            return ModelCondition.NOT_SERVING
        if is_refusing:
            return ModelCondition.REFUSING
        if not self.are_all_ready():
            return ModelCondition.DEGRADED
        return ModelCondition.STALLED if is_stalled else ModelCondition.READY

    @property
    def gpus(self) -> frozenset[bytes] | None:
        return usable_by_all(each.worker.gpus for each in self.instances if each.worker is not None)

    def _memory_usage(self) -> tuple[MemoryUse, ...]:
        """What the guests reported, added up by kind of memory."""
        total: dict[tuple[str, int], int] = {}
        for instance in self.instances:
            for each in () if instance.worker is None else instance.worker.memory_usage:
                total[each.type, each.id] = total.get((each.type, each.id), 0) + each.byte_size
        return tuple(MemoryUse(*kind, size) for kind, size in sorted(total.items()))

    @property
    def pending_count(self) -> int:
        """Number of requests that wait: for an instance, or in the queue that an instance reports."""
        return self._in_flight.dispatcher.waiting_count + self._in_flight.queued_inside

    # -- memory -------------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """What is due periodically: released output blocks, pages that are unused after a pause, looks at progress."""
        was_busy, self._was_busy = self._was_busy, len(self._in_flight) > 0
        is_idle = not was_busy and not self._was_busy and self._in_flight.trims_due > 0
        has_released = False
        for instance in self.instances:
            if instance.worker is not None:
                has_released |= instance.worker.release_idle_memory(idle=is_idle)
                instance.worker.follow_log_level()
                instance.worker.look_at_progress()
        if is_idle:
            self._in_flight.trims_due -= 1
        if has_released:  # a client may read its response, or leave it, long after the last request
            self._in_flight.expect_trims()

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        """Room for a request's body in the input segment of the least loaded instance. See `EngineFacade`.

        None with schedulers that batch. They lay the inputs of several requests side by side and may move a request
        to another instance, so the bytes would have to be copied anyway.
        """
        if self._in_flight.is_batching:
            return None
        workers = [instance.worker for instance in self._active if instance.worker is not None]
        return min(workers, key=_load).reserve_input(size, ahead) if workers else None

    # -- requests -----------------------------------------------------------------------------------------------

    def keep_responses(self, cache: ResponseCache) -> None:
        in_flight = self._in_flight
        self._admission.cache = CachedResponses(
            cache, self.config, self.version, self.number, in_flight.statistics, in_flight.order
        )

    @property
    def open_sequences(self) -> int:
        return self._in_flight.open_sequences

    def finish_sequences(self) -> int:
        return self._in_flight.finish_sequences()

    def has_sequence(self, correlation_id: int | str) -> bool:
        return self._in_flight.has_sequence(correlation_id)

    def _takers_of(self, request: OpenRequest) -> Collection[Worker]:
        """The guests that may take a request that waits; none while one is being started, which will take it."""
        workers = [instance.worker for instance in self._active if not instance.reason]
        elsewhere: Collection[Worker] | None = ()
        if self.replicas is not None and is_movable(request):
            elsewhere = self.replicas.workers()
        if None in workers or elsewhere is None:
            return ()
        return [*(worker for worker in workers if worker is not None), *elsewhere]

    def has_idle(self) -> bool:
        return self._in_flight.has_idle()

    # -- callbacks of instances and workers -----------------------------------------------------------------------

    def on_exit(self, worker: Worker, error: GuestExitedError) -> None:
        """Fail what the guest was executing, requeue what it had not begun, and have its instance start a new one."""
        now = clock.monotonic()
        blamed = self._in_flight.on_guest_exit(worker, error, now)
        if self._in_flight.fatal:
            self._admission.guard_with(self._in_flight.fatal)
        for instance in self.instances:
            instance.forget_exits(blamed)
        for instance in (*self.instances, *self._changing):
            if instance.worker is worker:
                instance.on_exit(error, now, is_forgotten=now in blamed)
        self.on_change()

    def on_hang(self, worker: Worker) -> None:  # noqa: ARG002 - the signature of `WorkerDelegate`
        """Have other processes know at once, not half a second later: they send the instance nothing more."""
        self.on_change()

    def on_stall(self, worker: Worker, keys: Sequence[int], seconds: float) -> None:
        """Log it: only the model's author knows whether it hangs."""
        pending = next(filter(None, map(self._in_flight.find, keys)), None)
        request = ""
        if pending is not None:
            age = (clock.monotonic_ns() - pending.queued) / 1e9
            name = f" '{pending.request.request_id}'" if pending.request.request_id else ""
            request = f" of request{name}, which is {age:.0f} s old,"
        logger.warning(
            "'%s' (pid %d) of model '%s' version %d makes no progress: execute%s has not returned for %.0f s; if it "
            "should not take so long, set HANG_SECONDS in config.pbtxt: then the stacks of its threads are logged, and "
            "the process is restarted",
            *(worker.spec.name, worker.pid, self.config.name, self.version, request, seconds),
        )

    def recovery_delay(self) -> float:
        """How many seconds an instance that was given up still has to wait before it tries a guest.

        While no instance serves, one guest at a time is tried: the others wait until it serves, or for the next pause.
        """
        return 0.0 if self.is_ready() else self._trials.delay(clock.monotonic())

    def on_restart(self, instance: Instance) -> None:
        if self._admission.reason and instance in self._active and not self._is_stopping:
            self._admission.reason = ""
            self._trials.on_serving(clock.monotonic())
        if instance.worker is not None and self._is_started and instance in self._active:
            self._in_flight.add_guest(instance.worker)
        self.on_change()

    async def warm_up(self, worker: Worker) -> None:
        """Have a new guest execute the samples; guests of passive instances serve no requests and need none."""
        if worker.spec.name not in self._passive:
            await self._warm_up.run(worker)

    def on_given_up(self, instance: Instance, pause: float | None) -> None:
        """After the last active instance was given up, reject everything that waits."""
        if all(other.reason for other in self._active):
            # `reason` is set from the time that no instance served until one serves again.
            self._trials.on_given_up(clock.monotonic(), pause, has_served=not self._admission.reason)
            self._admission.reason = instance.reason
            self._in_flight.fail_waiting(NotReadyError(instance.reason))
        self.on_change()
        self.on_instance_lost()


def _sum_of(own: ReplicaCounts, others: Sequence[ReplicaCounts]) -> ReplicaCounts:
    memory: dict[tuple[str, int], int] = {}
    for use in (use for each in (own, *others) for use in each.memory):
        memory[use.type, use.id] = memory.get((use.type, use.id), 0) + use.byte_size
    return ReplicaCounts(
        own.statistics.with_counts_of(each.statistics for each in others),
        own.pending + sum(each.pending for each in others),
        own.running + sum(each.running for each in others),
        tuple(MemoryUse(*kind, size) for kind, size in sorted(memory.items())),
        own.refused or next((each.refused for each in others if each.refused), ""),
    )


def _passive_names(config: ModelConfig) -> frozenset[str]:
    return frozenset(name for name, group in instance_groups(config).items() if group.passive)


def _load(worker: Worker) -> int:
    return len(worker.batches)

"""One version of a model that serves: its instances, and what they are asked.

Its requests are `traffic`'s business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from naiad.config.model.model_config import ModelConfig, instance_groups
from naiad.config.model.render import to_json
from naiad.engine.loading.warmup import Sample, extra_inputs
from naiad.engine.served import metadata_of
from naiad.engine.serving.instance import Instance
from naiad.engine.serving.rate_limiter import SharedLimiter
from naiad.engine.serving.sequence_states import state_inputs, state_outputs
from naiad.engine.serving.traffic import Traffic
from naiad.errors import GuestDiedError, NotReadyError
from naiad.lifecycle.restart import RestartPolicy
from naiad.logs import GuestName, log_guest_line, log_guest_record
from naiad.protocol.metadata import ModelStatistics
from naiad.resolution.decision import Resolution
from naiad.scheduling.sequences.states import StateTensor
from naiad.workers.exchange import Interface
from naiad.workers.launch import LaunchSpec
from naiad.workers.worker import GuestServices, Worker

_LOG_LEVELS = {0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR, 3: logging.DEBUG}


class ModelVersion(Traffic):
    """A loaded version; the owner of its instances and workers.

    Attributes:
        config: Its effective configuration.
        version: Its version number.
        number: Which of all versions ever loaded this is: tells two loads of one version apart.
        instances: Its instances.
        reason: Why it can serve no more; empty while it can.
        resolution: What runs it; None until the loader says so.
    """

    resolution: Resolution | None = None

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        specs: Iterable[LaunchSpec],
        policy: RestartPolicy,
        services: GuestServices,
        samples: Sequence[Sample] = (),
        limiter: SharedLimiter | None = None,
        states: Sequence[StateTensor] = (),
    ) -> None:
        super().__init__(config, version, samples, limiter, states)
        self.config_json = to_json(config.message)
        self.metadata = metadata_of(config, version)
        interface = Interface(config.name, version, input_names(config), output_names(config))
        specs = tuple(specs)
        self._leases = {lease for spec in specs for lease in (spec.prewarm, spec.lease) if lease is not None}
        self.instances = [Instance(spec, self, interface, policy, services) for spec in specs]
        passive = {name for name, group in instance_groups(config).items() if group.passive}
        self._active = [instance for instance in self.instances if instance.name not in passive]
        self._busy = False
        self._is_started = False

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
            self._is_started = True
            for instance in self._active:
                if instance.worker is not None:  # else it died while others started, and is being restarted
                    self._dispatcher.add(instance.worker)
        except BaseException:
            self._dispatcher.close()
            await asyncio.gather(*(instance.stop(0) for instance in self.instances))
            self._release_environment()
            raise

    async def stop(self, timeout: float) -> None:
        """Let requests in flight that somebody waits for finish within *timeout* seconds, then end all guests."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._are_wanted() and loop.time() < deadline and self.is_ready():
            await asyncio.sleep(0.01)
        self.reason = self.reason or "it is being unloaded"
        await asyncio.gather(*(instance.stop(max(deadline - loop.time(), 0.1)) for instance in self.instances))
        self._release_environment()
        self._dispatcher.close()
        self._fail(list(self._pending.values()), NotReadyError(f"model '{self.config.name}' is being unloaded"))

    def _release_environment(self) -> None:
        """Nothing is started in the environment any more, so that it may be removed."""
        for lease in self._leases:
            lease.release()

    def _are_wanted(self) -> bool:
        """Whether anybody waits for a request in flight; a model may take long to notice that nobody does."""
        return not all(pending.is_cancelled for pending in self._pending.values())

    def is_ready(self) -> bool:
        """Whether an instance can serve now."""
        return any(instance.worker is not None for instance in self._active)

    def are_all_ready(self) -> bool:
        """Whether every instance can serve now: what strict readiness asks (CORE src/backend_model.cc)."""
        return all(instance.worker is not None for instance in self.instances)

    def statistics(self) -> ModelStatistics:
        """Its statistics as they are now."""
        return self._statistics.value(self.config.name, str(self.version), self.pending_count)

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""
        return self._dispatcher.waiting_count

    def release_idle_memory(self) -> None:
        """Called now and then: hand blocks back, and after a pause free pages too."""
        was_busy, self._busy = self._busy, bool(self._pending)
        idle = not was_busy and not self._busy and self._trims_due > 0
        for instance in self.instances:
            if instance.worker is not None:
                instance.worker.tidy(idle=idle)
        if idle:
            self._trims_due -= 1

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        """Where the body of a request may be read to: to the instance that has least to do.

        None where schedulers put requests together, which lays them out side by side, or may give one out again.
        """
        if self._waits:
            return None
        workers = [instance.worker for instance in self._active if instance.worker is not None]
        return min(workers, key=_load).land(size, ahead) if workers else None

    def waits_of(self, key: int) -> Sequence[Sequence[Worker]]:
        """What a request waits for: the guests any of which could answer it; none if one is being started that may."""
        pending = self._pending.get(key)
        if pending is None:
            return ()
        if pending.worker is not None:
            return ((pending.worker,),)
        workers = [instance.worker for instance in self._active if not instance.reason]
        return ([] if None in workers else [worker for worker in workers if worker is not None],)

    # -- reports of workers and instances -----------------------------------------------------------------------

    def on_exit(self, worker: Worker, error: GuestDiedError) -> None:
        """Fail what the guest worked on, put back what it had not begun, and see to a new guest."""
        self._lose(worker, error)
        for instance in self.instances:
            if instance.worker is worker:
                instance.on_exit(error)

    def on_restart(self, instance: Instance) -> None:
        """A new guest may take work."""
        if instance.worker is not None and self._is_started and instance in self._active:
            self._dispatcher.add(instance.worker)

    async def warm_up(self, worker: Worker) -> None:
        """Have a new guest execute the samples, if it is to serve."""
        if worker.spec.name in [instance.name for instance in self._active]:
            await self._warm_up.run(worker)

    def on_restarts_exhausted(self, instance: Instance) -> None:
        """When the last instance is given up, nothing that waits will ever be served."""
        if all(other.reason for other in self._active):
            self.reason = instance.reason
            self._fail(list(self._scheduler.drain()), NotReadyError(self.reason))

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


def input_names(config: ModelConfig) -> list[str]:
    """Names of all tensors that requests may bring to the model: controls, states and those of samples included."""
    controls = config.message.sequence_batching.control_input
    inputs = [tensor.name for tensor in config.inputs]
    return [*inputs, *(tensor.name for tensor in controls), *state_inputs(config), *extra_inputs(config)]


def output_names(config: ModelConfig) -> list[str]:
    """Names of all tensors that the model may answer with, states included."""
    return list(dict.fromkeys([*(tensor.name for tensor in config.outputs), *state_outputs(config)]))

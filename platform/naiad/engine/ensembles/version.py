"""One loaded version of an ensemble: a graph of steps, which are requests to other models.

An ensemble has no guests and no queue. Its requests are executed by an `EnsembleExecution`, here and in the processes
of the server that have instances of all of its models.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Sequence

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import NaiadError
from naiad.engine.ensembles.execution import EnsembleExecution
from naiad.engine.ensembles.step import OnStepWaiting
from naiad.engine.registry import Registry
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph
from naiad.engine.served import LoadedVersion, metadata_of, version_numbers
from naiad.engine.serving.instance import Instance
from naiad.engine.serving.readiness import HasReplicas
from naiad.engine.serving.replicas import Replicas
from naiad.protocol.inference import DEVICE_INPUTS, DEVICE_OUTPUTS
from naiad.protocol.metadata import ModelCondition, ModelStatistics


class EnsembleVersion:
    """A loaded version of an ensemble, as the coordinator has it. Implements `ServedVersion`."""

    direct = None  # None: which instance gets the inputs is known only when the steps are dispatched
    replicas: Replicas | None = None

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        graph: EnsembleGraph,
        registry: Registry,
        on_waiting: OnStepWaiting,
    ) -> None:
        self.config = config
        self.metadata = metadata_of(config, version)
        self.version = version
        self.number = next(version_numbers)
        self.graph = graph
        self._registry = registry
        self._execution = execution = EnsembleExecution(config, version, self.number, graph, registry, on_waiting)
        self.totals = execution.totals
        self.accept = execution.accept
        self.keep_responses = execution.keep_responses

    def __repr__(self) -> str:
        return (
            f"<EnsembleVersion '{self.config.name}' {self.version} ready={self.is_ready()} "
            f"steps={len(self.graph.steps)} in-flight={self._execution.in_flight}>"
        )

    @property
    def device(self) -> int:
        """See `Target`. Its inputs may be in GPU memory if all steps take them there that they go to."""
        if self.config.message.response_cache.enable:
            return 0
        steps = {step for name in self.graph.inputs for step in self.graph.consumers.get(name, ())}
        return DEVICE_OUTPUTS | (DEVICE_INPUTS if all(map(self._execution.submitter.takes_device, steps)) else 0)

    @property
    def gpus(self) -> frozenset[bytes] | None:
        """See `Target`: those of the guests that its inputs go to."""
        steps = {step for name in self.graph.inputs for step in self.graph.consumers.get(name, ())}
        return self._execution.submitter.gpus_of(steps)

    @property
    def reason(self) -> str:
        return self._execution.reason

    @property
    def is_lost(self) -> bool:
        return any(member is None or member.is_lost for member in self.members())

    # -- life ---------------------------------------------------------------------------------------------------

    async def start_replicas(self, replicas: Replicas) -> None:
        """Have other processes execute its requests, too, that arrive there."""
        replicas.is_decoupled = self.config.decoupled
        try:
            await replicas.start()
        except BaseException:
            await replicas.stop(0)
            raise
        self.replicas = replicas

    async def stop(self, timeout: float) -> None:
        elsewhere = () if self.replicas is None else (self.replicas.stop(timeout),)
        await asyncio.gather(self._execution.stop(timeout), *elsewhere)

    def is_finishing_requests(self) -> bool:
        return self._execution.in_flight > 0 or (self.replicas is not None and self.replicas.in_flight > 0)

    @property
    def open_sequences(self) -> int:
        targets = [self._registry.find(*step) for step in self._steps() if self._member(*step) is not None]
        return sum(target.open_sequences for target in targets)

    def is_ready(self) -> bool:
        return not self.reason and all(member is not None and member.is_ready() for member in self.members())

    def are_all_ready(self) -> bool:
        return not self.reason and all(member is not None and member.are_all_ready() for member in self.members())

    @property
    def instances(self) -> Sequence[Instance]:
        return [instance for member in self.members() if member is not None for instance in member.instances]

    def _steps(self) -> Iterable[tuple[str, int]]:
        return dict.fromkeys((step.model, step.version) for step in self.graph.steps)

    def _member(self, name: str, version: int) -> LoadedVersion | None:
        try:
            return self._registry.find_loaded(name, version)
        except NaiadError:
            return None

    def processes_of_members(self) -> list[Collection[int]]:
        return [_processes_of(self._member(*step)) for step in self._steps()]

    def members(self) -> Iterable[LoadedVersion | None]:
        return itertools.starmap(self._member, self._steps())

    def statistics(self) -> ModelStatistics:
        condition = ModelCondition.NOT_SERVING
        if self.is_ready():
            condition = ModelCondition.READY if self.are_all_ready() else ModelCondition.DEGRADED
        others = () if self.replicas is None else [each.statistics for each in self.replicas.counts()]
        totals = self.totals.with_counts_of(others) if others else self.totals
        return totals.value(self.config.name, str(self.version), condition=condition)


def _processes_of(member: object) -> Collection[int]:
    if not isinstance(member, HasReplicas) or member.replicas is None:
        return ()
    return member.replicas.processes

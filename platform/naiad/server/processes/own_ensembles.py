"""The ensembles whose requests this process executes where they arrive, by order of the coordinator.

A step goes where a client's request to its model would go: to an instance here, or to another process with less to do.
"""

from __future__ import annotations

from typing import Protocol

from naiad.config.model.model_config import ModelConfig, freeze
from naiad.config.model.text import parse_mapping
from naiad.engine.ensembles.execution import EnsembleExecution
from naiad.engine.lifecycle.placement import COORDINATOR
from naiad.engine.open_request import OpenRequest
from naiad.engine.served import Target
from naiad.engine.serving.replicas import ReplicaCounts, ReplicaReport
from naiad.protocol.metadata import ModelMetadata
from naiad.server.processes.load_table import LoadTable
from naiad.server.processes.messages import VersionRoute


class ModelAccess(Protocol):
    """How this process reaches the models of all processes."""

    def find_model(self, name: str, version: int) -> tuple[VersionRoute, ModelConfig | None]:
        """The route to a name and version, and its configuration if an instance is here; NaiadError without a route."""

    def submit_step(self, opened: OpenRequest) -> None:
        """Submit a request that this process makes; raises as `EngineFacade.submit`."""


class _StepTarget:
    """What a step's requests go to; implements `Target`. Clients' requests alone are executed here."""

    direct = None
    device = 0
    gpus = None
    open_sequences = 0
    reason = ""

    def __init__(self, models: ModelAccess, config: ModelConfig, number: int, metadata: ModelMetadata) -> None:
        self.config = config
        self.number = number
        self.metadata = metadata
        self.submit = models.submit_step


class StepTargets:
    """Implements `StepModels` with the routes of this process."""

    def __init__(self, models: ModelAccess) -> None:
        self._models = models
        self._found: dict[tuple[str, int], _StepTarget] = {}

    def find(self, name: str, version: int) -> Target:
        route, config = self._models.find_model(name, version)
        found = self._found.get((name, version))
        if found is None or found.number != route.number:
            if config is None:
                config = freeze(parse_mapping(route.config, name))
            found = self._found[name, version] = _StepTarget(self._models, config, route.number, route.metadata)
        return found


class OwnEnsemble:
    """One ensemble, and the way of this process's requests to it."""

    def __init__(self, execution: EnsembleExecution, row: int, table: LoadTable) -> None:
        self.execution = execution
        self.is_open = True  # whether it takes requests
        self._row = row
        self._table = table
        execution.on_end = self._note_load

    def close(self) -> None:
        """Take no requests any more; those in flight go on."""
        self.is_open = False

    def better_process(self) -> int | None:
        """The process that a request goes to; None for this one."""
        return None if self.is_open else COORDINATOR

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:  # noqa: ARG002 - as that of `OwnReplica`
        """None: which instance gets the inputs is known only when the steps are dispatched."""
        return None

    def submit(self, opened: OpenRequest) -> None:
        self.execution.submit(opened)
        self._note_load()

    def _note_load(self) -> None:
        """Have the coordinator know how many requests it has: it waits for them when the ensemble is unloaded."""
        self._table.note_requests(self._row, self.execution.in_flight)

    def report(self) -> ReplicaReport:
        return ReplicaReport(ReplicaCounts(self.execution.totals), (), is_asked=False, typical=0)

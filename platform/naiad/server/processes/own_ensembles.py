"""The steps of ensembles whose requests a process executes where they arrive, by order of the coordinator.

A step goes where a client's request to its model would go: to an instance here, or to another process with less to do.
"""

from __future__ import annotations

from typing import Protocol

from naiad.config.model.model_config import ModelConfig, freeze
from naiad.config.model.text import parse_mapping
from naiad.engine.open_request import OpenRequest
from naiad.engine.served import Target
from naiad.protocol.metadata import ModelMetadata
from naiad.server.processes.messages import VersionRoute


class ModelAccess(Protocol):
    """How this process reaches the models of all processes."""

    def find_model(self, name: str, version: int) -> tuple[VersionRoute, ModelConfig | None]:
        """The route to a name and version, and its configuration if an instance is here; NaiadError without a route."""

    def submit_step(self, opened: OpenRequest) -> None:
        """Submit a request that this process makes; raises as `Target.accept`."""


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
        self.accept = models.submit_step


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

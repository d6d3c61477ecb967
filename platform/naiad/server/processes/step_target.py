"""The steps of ensembles whose requests a process executes where they arrive, by order of the coordinator.

A step goes where a client's request to its model would go: to an instance here, or to another process with less to do.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.config.model.model_config import ModelConfig
from naiad.engine.open_request import OpenRequest
from naiad.server.processes.messages import VersionRoute


class StepTarget:
    """What the requests of a step go to; implements `Target`. Clients' requests alone are executed here."""

    direct = None
    device = 0
    gpus = None
    open_sequences = 0
    reason = ""

    def __init__(self, route: VersionRoute, config: ModelConfig, accept: Callable[[OpenRequest], None]) -> None:
        self.config = config
        self.number = route.number
        self.metadata = route.metadata
        self.accept = accept

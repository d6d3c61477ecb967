"""The requests to one version of an ensemble that one process of the server executes.

Each is an `EnsembleRequest`, whose steps are submitted to what their models' names refer to at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import NotReadyError
from naiad.engine.ensembles.request import EnsembleRequest, EnsembleResponses
from naiad.engine.ensembles.step import OnStepWaiting, StepModels, StepSubmitter
from naiad.engine.open_request import OpenRequest
from naiad.engine.response_cache import CachedResponses, ResponseCache
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.statistics.counters import Statistics
from naiad.protocol.request_plan import CheckedLayout

_POLL_SECONDS = 0.01


def graph_of(message: pb.ModelConfig, steps: Sequence[EnsembleStep]) -> EnsembleGraph:
    """The steps of an ensemble, and the tensors between them; *message* is its configuration."""
    return EnsembleGraph(
        name=message.name,
        steps=tuple(steps),
        inputs=tuple(tensor.name for tensor in message.input),
        outputs=tuple(tensor.name for tensor in message.output),
    )


class EnsembleExecution:
    """Requests in flight, and how they are executed."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        number: int,
        graph: EnsembleGraph,
        models: StepModels,
        on_waiting: OnStepWaiting,
    ) -> None:
        self.config = config
        self.number = number
        self.graph = graph
        self.submitter = StepSubmitter(
            graph, models, config.message.ensemble_scheduling.max_inflight_requests, on_waiting
        )
        self._note_load: Callable[[int], None] = lambda _: None
        self._version = version
        self._responses = EnsembleResponses(config, version)
        self.totals: Statistics = self._responses.totals
        plan = compile_plan(config, version, number)
        self._admission = Admission(plan, self._start, self.totals)
        self.accept = self._admission.admit
        self._requests: dict[EnsembleRequest, None] = {}  # oldest first

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    def observe_load(self, note: Callable[[int], None]) -> None:
        """From now on call *note* with the number of requests in flight whenever one has been answered."""
        self._note_load = note

    @property
    def reason(self) -> str:
        return self._admission.reason

    def keep_responses(self, cache: ResponseCache) -> None:
        self._admission.cache = CachedResponses(cache, self.config, self._version, self.number, self.totals)

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds; fail those that do not, and take no more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._requests and loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        self._admission.reason = self.reason or "it is being unloaded"
        for request in list(self._requests):
            request.fail(NotReadyError(f"model '{self.config.name}' is being unloaded"))

    def _start(self, opened: OpenRequest, layout: CheckedLayout) -> None:
        started = EnsembleRequest(self.submitter, self._responses, opened, layout.batch_size, self._on_done)
        self._requests[started] = None
        started.begin()

    def _on_done(self, ended: EnsembleRequest) -> None:
        self._requests.pop(ended, None)
        self._note_load(len(self._requests))

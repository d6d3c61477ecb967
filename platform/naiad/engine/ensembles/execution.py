"""The requests to one version of an ensemble that one process of the server executes.

Each is an `EnsembleRequest`, whose steps are submitted to what their models' names refer to at that moment.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import NaiadError, NotReadyError
from naiad.engine.ensembles.request import EnsembleRequest, EnsembleResponses
from naiad.engine.ensembles.step import OnStepWaiting, StepModels, StepSubmitter
from naiad.engine.response_cache import CachedResponses, ResponseCache
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.statistics.counters import Statistics
from naiad.guests.worker import Worker
from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.request_plan import CheckedLayout

__all__ = ["EnsembleExecution", "graph_of"]

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
        self.on_end: Callable[[], None] = lambda: None
        self._version = version
        self._responses = EnsembleResponses(config, version)
        self.totals: Statistics = self._responses.totals
        plan = compile_plan(config, version, number)
        self._admission = Admission(plan, self._start, itertools.count(1), self.totals)
        self.submit = self._admission.submit
        self._requests: dict[int, EnsembleRequest] = {}

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    @property
    def reason(self) -> str:
        return self._admission.reason

    def keep_responses(self, cache: ResponseCache) -> None:
        """From now on answer requests that *cache* knows the response of from there."""
        self._admission.cache = CachedResponses(cache, self.config, self._version, self.number, self.totals)

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds; fail those that do not, and take no more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._requests and loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        self._admission.reason = self.reason or "it is being unloaded"
        for request in list(self._requests.values()):
            request.fail(NotReadyError(f"model '{self.config.name}' is being unloaded"))

    def _start(self, key: int, request: InferRequest, sink: Sink, layout: CheckedLayout, needs_idle: bool) -> None:  # noqa: FBT001 - see `StartRequest`
        def end() -> None:
            self._requests.pop(key, None)
            self.on_end()

        started = self._requests[key] = EnsembleRequest(
            self.submitter, self._responses, request, sink, layout.batch_size, needs_idle=needs_idle, on_done=end
        )
        started.begin()

    def cancel(self, key: int) -> None:
        request = self._requests.get(key)
        if request is not None:
            request.cancel()

    def reject_waiting(self, key: int, error: NaiadError) -> None:
        request = self._requests.get(key)
        if request is not None:
            request.fail(error)

    def is_waiting(self, key: int) -> bool:
        request = self._requests.get(key)
        return request is not None and any(step.is_waiting for step in request.step_requests)

    def waits_of(self, key: int) -> Sequence[Collection[Worker]]:
        request = self._requests.get(key)
        return [] if request is None else [servers for step in request.step_requests for servers in step.waits()]

    def confirm_sent(self, key: int, count: int) -> None:
        request = self._requests.get(key)
        if request is not None:
            request.confirm_sent(count)

    def drop_responses(self, key: int) -> None:
        request = self._requests.get(key)
        if request is not None:
            request.drop_responses()

"""One loaded version of an ensemble: a graph of steps, which are requests to other models.

An ensemble has no guests and no queue. Its requests pass an `Admission`, like those to models; then each is
an `EnsembleRequest`, whose steps are submitted to the versions that the registry has at that moment.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from naiad.config.model.model_config import ModelConfig
from naiad.config.model.render import to_json
from naiad.core.errors import NaiadError, NotReadyError
from naiad.engine.ensembles.request import EnsembleRequest, EnsembleResponses
from naiad.engine.ensembles.step import StepSubmitter
from naiad.engine.registry import Registry
from naiad.engine.response_cache import CachedResponses, ResponseCache
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph
from naiad.engine.served import LoadedVersion, metadata_of, version_numbers
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.serving.instance import Instance
from naiad.engine.statistics.counters import Statistics
from naiad.guests.worker import Worker
from naiad.protocol.inference import DEVICE_INPUTS, DEVICE_OUTPUTS, InferRequest, Sink
from naiad.protocol.metadata import ModelCondition, ModelStatistics
from naiad.protocol.request_plan import CheckedLayout


class EnsembleVersion:
    """A loaded version of an ensemble. Implements `ServedVersion`.

    Attributes:
        config: Its effective configuration.
        config_json: The same as the reference prints it.
        metadata: Its inputs and outputs.
        version: Its version number.
        number: Number of this load among all loads of all versions: the plan's generation.
        graph: Its steps.
        submit: See `Target.submit`.
        direct: None: which instance gets the inputs is known only when the steps are dispatched.
    """

    direct = None

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        graph: EnsembleGraph,
        registry: Registry,
        on_waiting: Callable[[], None],
    ) -> None:
        """Make a version that is ready at once.

        Args:
            config: Its configuration.
            version: Its number.
            graph: Its steps.
            registry: Where to find the models of its steps.
            on_waiting: Called when a step has to wait for an instance, which may close a deadlock cycle of models.
        """
        self.config = config
        self.config_json = to_json(config.message)
        self.metadata = metadata_of(config, version)
        self.version = version
        self.number = next(version_numbers)
        self.graph = graph
        self._registry = registry
        self._submitter = StepSubmitter(
            graph, registry, config.message.ensemble_scheduling.max_inflight_requests, on_waiting
        )
        self._responses = EnsembleResponses(config, version)
        plan = compile_plan(config, version, self.number)
        self._admission = Admission(plan, self._start, itertools.count(1), self._responses.totals)
        self.submit = self._admission.submit
        self._requests: dict[int, EnsembleRequest] = {}

    def __repr__(self) -> str:
        return (
            f"<EnsembleVersion '{self.config.name}' {self.version} ready={self.is_ready()} "
            f"steps={len(self.graph.steps)} in-flight={len(self._requests)}>"
        )

    @property
    def totals(self) -> Statistics:
        """What is counted of its requests."""
        return self._responses.totals

    def keep_responses(self, cache: ResponseCache) -> None:
        """From now on answer requests that *cache* knows the response of from there."""
        self._admission.cache = CachedResponses(cache, self.config, self.version, self.number, self._responses.totals)

    @property
    def device(self) -> int:
        """See `Target`. Its inputs may be in GPU memory if all steps take them there that they go to."""
        if self.config.message.response_cache.enable:
            return 0
        steps = {step for name in self.graph.inputs for step in self.graph.consumers.get(name, ())}
        return DEVICE_OUTPUTS | (DEVICE_INPUTS if all(map(self._submitter.takes_device, steps)) else 0)

    @property
    def gpus(self) -> frozenset[bytes] | None:
        """See `Target`: those of the guests that its inputs go to."""
        steps = {step for name in self.graph.inputs for step in self.graph.consumers.get(name, ())}
        return self._submitter.gpus_of(steps)

    @property
    def reason(self) -> str:
        """Why it cannot serve now; empty while it can."""
        return self._admission.reason

    @property
    def is_lost(self) -> bool:
        """Whether the model of a step is missing or lost."""
        return any(member is None or member.is_lost for member in self._members())

    # -- life ---------------------------------------------------------------------------------------------------

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds; fail those that do not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._requests and loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._admission.reason = self.reason or "it is being unloaded"
        for request in list(self._requests.values()):
            request.fail(NotReadyError(f"model '{self.config.name}' is being unloaded"))

    def is_finishing_requests(self) -> bool:
        """See `LoadedVersion`."""
        return bool(self._requests)

    @property
    def open_sequences(self) -> int:
        """The number of sequences in progress in the models of its steps, whose own handovers look after these."""
        targets = [self._registry.find(*step) for step in self._steps() if self._member(*step) is not None]
        return sum(target.open_sequences for target in targets)

    def is_ready(self) -> bool:
        """Whether the models of all steps can serve now."""
        return not self.reason and all(member is not None and member.is_ready() for member in self._members())

    def are_all_ready(self) -> bool:
        """Whether the models of all steps can serve with all their instances."""
        return not self.reason and all(member is not None and member.are_all_ready() for member in self._members())

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of the models of all steps."""
        return [instance for member in self._members() if member is not None for instance in member.instances]

    def _steps(self) -> Iterable[tuple[str, int]]:
        return dict.fromkeys((step.model, step.version) for step in self.graph.steps)

    def _member(self, name: str, version: int) -> LoadedVersion | None:
        try:
            return self._registry.find_loaded(name, version)
        except NaiadError:
            return None

    def _members(self) -> Iterator[LoadedVersion | None]:
        return itertools.starmap(self._member, self._steps())

    def statistics(self) -> ModelStatistics:
        """Its statistics as they are now."""
        condition = ModelCondition.NOT_SERVING
        if self.is_ready():
            condition = ModelCondition.READY if self.are_all_ready() else ModelCondition.DEGRADED
        return self._responses.totals.value(self.config.name, str(self.version), condition=condition)

    # -- requests -----------------------------------------------------------------------------------------------

    def _start(self, key: int, request: InferRequest, sink: Sink, layout: CheckedLayout, needs_idle: bool) -> None:  # noqa: FBT001 - see `StartRequest`
        """See `StartRequest`."""
        started = self._requests[key] = EnsembleRequest(
            self._submitter,
            self._responses,
            request,
            sink,
            layout.batch_size,
            needs_idle=needs_idle,
            on_done=partial(self._requests.pop, key, None),
        )
        started.begin()

    def cancel(self, key: int) -> None:
        """See `Target`."""
        request = self._requests.get(key)
        if request is not None:
            request.cancel()

    def reject_waiting(self, key: int, error: NaiadError) -> None:
        """See `Target`."""
        request = self._requests.get(key)
        if request is not None:
            request.fail(error)

    def is_waiting(self, key: int) -> bool:
        """Whether a step of the request waits for an instance."""
        request = self._requests.get(key)
        return request is not None and any(step.is_waiting for step in request.step_requests)

    def waits_of(self, key: int) -> Sequence[Collection[Worker]]:
        """What the request's steps in flight wait for."""
        request = self._requests.get(key)
        return [] if request is None else [servers for step in request.step_requests for servers in step.waits]

    def confirm_sent(self, key: int, count: int) -> None:
        """See `Target`."""
        request = self._requests.get(key)
        if request is not None:
            request.confirm_sent(count)

    def drop_responses(self, key: int) -> None:
        """See `Target`."""
        request = self._requests.get(key)
        if request is not None:
            request.drop_responses()

"""One version of an ensemble: its requests, whose steps are requests to other models.

What to do when is decided by `scheduling.ensemble`; this submits the steps, passes tensors on and answers. Tensors are
never copied here: a step's output is the next one's input by reference, which also keeps lent memory of the guest that
made it alive until the next guest has it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from naiad.config.model.model_config import ModelConfig
from naiad.config.model.render import to_json
from naiad.engine.ensembles.run import Answers, Run
from naiad.engine.ensembles.step import StepDesk
from naiad.engine.registry import Registry
from naiad.engine.response_cache import CachedResponses, ResponseCache
from naiad.engine.served import ServedVersion, metadata_of, version_numbers
from naiad.engine.serving.admission import Admission
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.serving.instance import Instance
from naiad.engine.statistics.counters import Statistics
from naiad.errors import NaiadError, NotReadyError
from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.metadata import ModelStatistics
from naiad.protocol.request_plan import CheckedLayout
from naiad.scheduling.ensembles.graph import EnsembleGraph
from naiad.workers.worker import Worker


class EnsembleVersion:
    """See `naiad.engine.served.ServedVersion`, which this implements.

    Attributes:
        config: Its effective configuration.
        config_json: The same as the reference prints it.
        metadata: Its inputs and outputs.
        version: Its version number.
        number: Which of all versions ever loaded this is.
        graph: Its steps.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        graph: EnsembleGraph,
        registry: Registry,
        when_waiting: Callable[[], None],
    ) -> None:
        """Make a version that is ready at once.

        Args:
            config: Its configuration.
            version: Its number.
            graph: Its steps.
            registry: Where the models of its steps are.
            when_waiting: Called when a step of it waits for an instance, which may close a ring of waiting models.
        """
        self.config = config
        self.config_json = to_json(config.message)
        self.metadata = metadata_of(config, version)
        self.version = version
        self.number = next(version_numbers)
        self.graph = graph
        self._registry = registry
        self._desk = StepDesk(graph, registry, config.message.ensemble_scheduling.max_inflight_requests, when_waiting)
        self._answers = Answers(config, version)
        plan = compile_plan(config, version, self.number)
        self._admission = Admission(plan, self._start, itertools.count(1))
        self.submit = self._admission.submit
        self._runs: dict[int, Run] = {}

    def __repr__(self) -> str:
        return (
            f"<EnsembleVersion '{self.config.name}' {self.version} ready={self.is_ready()} "
            f"steps={len(self.graph.steps)} in-flight={len(self._runs)}>"
        )

    @property
    def totals(self) -> Statistics:
        """What is counted of its requests."""
        return self._answers.totals

    def keep_responses(self, cache: ResponseCache) -> None:
        """From now on answer requests that *cache* knows the response of from there."""
        self._admission.cache = CachedResponses(cache, self.config, self.version, self.number, self._answers.totals)

    @property
    def reason(self) -> str:
        """Why it cannot serve any more; empty while it can."""
        return self._admission.reason

    # -- life ---------------------------------------------------------------------------------------------------

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds; fail those that do not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._runs and loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._admission.reason = self.reason or "it is being unloaded"
        for run in list(self._runs.values()):
            run.give_up(NotReadyError(f"model '{self.config.name}' is being unloaded"))

    def has_sequence(self, correlation_id: int | str) -> bool:  # noqa: ARG002
        """None of its own: a model of its steps that is handing over finds those by itself."""
        return False

    def finish_sequences(self) -> int:
        """Let no sequence begin any more in the models of its steps; how many are under way there."""
        return sum(member.finish_sequences() for member in self._members() if member is not None)

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

    def _members(self) -> Iterator[ServedVersion | None]:
        for name, version in dict.fromkeys((step.model, step.version) for step in self.graph.steps):
            try:
                yield self._registry.find(name, version)
            except NaiadError:
                yield None

    def statistics(self) -> ModelStatistics:
        """Its statistics as they are now."""
        return self._answers.totals.value(self.config.name, str(self.version))

    @property
    def pending_count(self) -> int:
        """None ever waits: what waits are the requests of its steps."""
        return 0

    def release_idle_memory(self) -> None:
        """Nothing to hand back."""

    # -- requests -----------------------------------------------------------------------------------------------

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:  # noqa: ARG002
        """Anywhere: which of its models gets what is known only later."""
        return None

    def _start(self, key: int, request: InferRequest, sink: Sink, layout: CheckedLayout, alone: bool) -> None:  # noqa: FBT001 - see `StartRequest`
        """See `StartRequest`."""
        run = self._runs[key] = Run(
            self._desk,
            self._answers,
            request,
            sink,
            layout.batch_size,
            alone=alone,
            when_done=partial(self._finished, key),
        )
        run.begin()

    def cancel(self, key: int) -> None:
        """Cancel the steps under way and begin no more."""
        run = self._runs.get(key)
        if run is not None:
            run.cancel()

    def reject_waiting(self, key: int, error: NaiadError) -> None:
        """Answer a request with *error*."""
        run = self._runs.get(key)
        if run is not None:
            run.give_up(error)

    def is_waiting(self, key: int) -> bool:
        """Whether a step of the request waits for an instance."""
        run = self._runs.get(key)
        return run is not None and any(step.is_waiting for step in run.submissions)

    def waits_of(self, key: int) -> Sequence[Collection[Worker]]:
        """What its steps under way wait for."""
        run = self._runs.get(key)
        return [] if run is None else [servers for step in run.submissions for servers in step.waits]

    def confirm_sent(self, key: int, count: int) -> None:
        """Note that responses have left for the client; steps may be held back until they have."""
        run = self._runs.get(key)
        if run is not None:
            run.taken(count)

    def waive_flow_control(self, key: int) -> None:
        """Note that no response of a request will ever wait for its client again."""
        run = self._runs.get(key)
        if run is not None:
            run.waive_flow_control()

    def _finished(self, key: int) -> None:
        self._runs.pop(key, None)

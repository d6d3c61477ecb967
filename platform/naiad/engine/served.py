"""What serves requests under a model's name and version: a model's own version, or an ensemble of others."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from naiad.config.model.model_config import ModelConfig
from naiad.engine.response_cache import ResponseCache
from naiad.engine.serving.instance import Instance
from naiad.engine.statistics.counters import Statistics
from naiad.errors import NaiadError
from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.metadata import ModelMetadata, ModelStatistics, TensorMetadata
from naiad.workers.worker import Worker

version_numbers = itertools.count(1)
"""Each version ever loaded takes one: it tells two loads of one version apart."""


class ServedVersion(Protocol):
    """A loaded version, as the registry, the engine and calls between models use it."""

    @property
    def config(self) -> ModelConfig:
        """Its effective configuration."""

    @property
    def config_json(self) -> Mapping[str, Any]:
        """The same as the reference prints it."""

    @property
    def metadata(self) -> ModelMetadata:
        """Its inputs and outputs."""

    @property
    def version(self) -> int:
        """Its version number."""

    @property
    def number(self) -> int:
        """Which of all versions ever loaded this is."""

    @property
    def reason(self) -> str:
        """Why it can serve no more; empty while it can."""

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances that its requests may reach."""

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds, then end whatever it owns."""

    @property
    def totals(self) -> Statistics:
        """What is counted of its requests."""

    def keep_responses(self, cache: ResponseCache) -> None:
        """From now on answer requests that *cache* knows the response of from there."""

    def finish_sequences(self) -> int:
        """Let no sequence begin any more; how many are under way."""

    def has_sequence(self, correlation_id: int | str) -> bool:
        """Whether a sequence of that id is under way."""

    def is_ready(self) -> bool:
        """Whether it can serve now."""

    def are_all_ready(self) -> bool:
        """Whether all that belongs to it can serve now."""

    def statistics(self) -> ModelStatistics:
        """Its statistics as they are now."""

    def release_idle_memory(self) -> None:
        """Called now and then: hand back what is not needed."""

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        """Where the body of a request may be read to; None where it makes no difference."""

    def submit(self, request: InferRequest, sink: Sink, *, alone: bool = False) -> int:
        """Queue a request; return its key. With *alone*, never behind another one on the same instance."""

    def cancel(self, key: int) -> None:
        """Take a request back."""

    def reject_waiting(self, key: int, error: NaiadError) -> None:
        """Answer a request that waits for an instance with *error*."""

    def is_waiting(self, key: int) -> bool:
        """Whether the request waits for an instance."""

    def waits_of(self, key: int) -> Sequence[Collection[Worker]]:
        """What the request waits for: each time, the guests any of which could answer (none: one is being started)."""

    def confirm_sent(self, key: int, count: int) -> None:
        """Note that responses have left for the client."""

    def waive_flow_control(self, key: int) -> None:
        """Note that no response of a request will ever wait for its client again."""


def metadata_of(config: ModelConfig, version: int) -> ModelMetadata:
    """The inputs and outputs that a configuration names."""
    leading = (-1,) if config.max_batch_size > 0 else ()
    inputs = tuple(
        TensorMetadata(
            name=tensor.name,
            datatype=tensor.datatype.name,
            shape=leading + tensor.dims,
            required=not tensor.optional,
        )
        for tensor in config.inputs
    )
    outputs = tuple(
        TensorMetadata(name=tensor.name, datatype=tensor.datatype.name, shape=leading + tensor.dims)
        for tensor in config.outputs
    )
    return ModelMetadata(
        name=config.name,
        versions=(str(version),),
        platform=config.platform or config.backend,
        inputs=inputs,
        outputs=outputs,
    )

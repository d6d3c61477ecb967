"""What serves requests under a model's name and version: a model's own version, or an ensemble of others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from naiad.config.model.model_config import ModelConfig
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.forwarding import Forwarding
from naiad.engine.serving.instance import Instance
from naiad.engine.statistics.counters import Statistics
from naiad.guests.memory.link_memory import SharedInputs
from naiad.protocol.metadata import ModelMetadata, ModelStatistics, TensorMetadata

version_numbers = itertools.count(1)  # numbers of loads: two loads of the same version have different ones


class DirectAccess(Protocol):
    """Ways of requests to the guests of one version that skip steps. Without them, a request takes longer."""

    @property
    def forwarding(self) -> Forwarding | None:
        """Forwards requests to the guests; None if requests of the version cannot be forwarded."""

    @property
    def shared_inputs(self) -> SharedInputs | None:
        """The inputs that other processes of the server share with the guests; None where it has one process."""

    @property
    def row(self) -> int | None:
        """Where processes note their loads for it; None if one process has all of its instances."""

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        """See `EngineFacade.reserve_input`."""


class Target(Protocol):
    """What requests to a name and version go to: what a frontend, an ensemble or a calling model needs of it."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def number(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def metadata(self) -> ModelMetadata: ...

    @property
    def device(self) -> int:
        """DEVICE_INPUTS if its models take inputs in GPU memory, DEVICE_OUTPUTS if outputs may stay there."""

    @property
    def gpus(self) -> frozenset[bytes] | None:
        """UUIDs of the GPUs whose memory all its guests can use; None if that is not known."""

    @property
    def direct(self) -> DirectAccess | None: ...

    @property
    def open_sequences(self) -> int:
        """Number of sequences in progress, whose requests are accepted also while the server stops."""

    def accept(self, opened: OpenRequest) -> None:
        """Take a request, which may end before this returns; after a NaiadError its sink gets nothing."""


class LoadedVersion(Protocol):
    """The life of a version that is in the index as READY: what is known and counted of it, until it is stopped."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def metadata(self) -> ModelMetadata: ...

    @property
    def version(self) -> int: ...

    @property
    def number(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def is_lost(self) -> bool:
        """Whether it was given up and its recovery has failed several times, or is not tried at all."""

    @property
    def instances(self) -> Sequence[Instance]: ...

    @property
    def totals(self) -> Statistics: ...

    def is_ready(self) -> bool: ...

    def are_all_ready(self) -> bool:
        """Whether all its instances can serve now."""

    def statistics(self) -> ModelStatistics: ...

    def is_finishing_requests(self) -> bool:
        """Whether clients still wait for what was replaced: this version, or the instances removed from it."""

    async def stop(self, timeout: float) -> None:
        """Let requests in flight finish within *timeout* seconds, then end its guests."""


class ServedVersion(Target, LoadedVersion, Protocol):
    """A version in the index: requests go to it, and it has a life."""


@runtime_checkable
class SequenceOwner(Protocol):
    """A version whose guests remember sequences: one that is replaced keeps those that are in progress."""

    def has_sequence(self, correlation_id: int | str) -> bool:
        """Whether a sequence with that id is in progress."""

    def finish_sequences(self) -> int:
        """Let no further sequence start; the number of those in progress."""


def metadata_of(config: ModelConfig, version: int) -> ModelMetadata:
    """The inputs and outputs of a model with that configuration."""
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

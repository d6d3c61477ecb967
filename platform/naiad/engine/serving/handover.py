"""A reloaded version together with its predecessors, for as long as these have sequences in progress.

A sequence depends on what its instance remembers. Its requests therefore go to the version that has it, until the
sequence ends or is idle for too long; new sequences go to the new version. The reference drops such sequences: their
clients have to start again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import NaiadError
from naiad.engine.response_cache import ResponseCache
from naiad.engine.served import ServedVersion, version_numbers
from naiad.engine.serving.instance import Instance
from naiad.engine.statistics.counters import Statistics
from naiad.guests.memory.frontend_memory import SharedInputs
from naiad.guests.worker import Worker
from naiad.protocol.inference import SEQUENCE_START, InferRequest, Sink
from naiad.protocol.metadata import ModelMetadata, ModelStatistics

__all__ = ["Handover", "newest"]


class Handover:
    """Implements `ServedVersion` by delegating to the new version, except requests of sequences that old ones have.

    Attributes:
        olds: The predecessors that still have sequences, oldest first.
        new: The version loaded last.
        number: Number of this handover among all loads of all versions.
        is_over: Whether the remaining sequences of old versions are not waited for any more.
    """

    def __init__(self, before: ServedVersion, new: ServedVersion) -> None:
        """Replace *before*, which may be a handover itself, by *new*."""
        self.olds: list[ServedVersion] = [*before.olds, before.new] if isinstance(before, Handover) else [before]
        self.new: ServedVersion = new
        self.number = next(version_numbers)
        self.is_over = False
        # Keys of requests encode the position in this tuple, so it never changes, even when an old version ends.
        self._parts = (new, *self.olds)

    def __repr__(self) -> str:
        return f"<Handover of {self.olds!r} to {self.new!r}>"

    def give_up(self) -> None:
        """Stop waiting for sequences of old versions."""
        self.is_over = True

    async def stop(self, timeout: float) -> None:
        """Stop the new version; `ModelLoads` stops each old one, for whose sequences it waits."""
        self.give_up()
        await self.new.stop(timeout)

    # -- requests -----------------------------------------------------------------------------------------------

    @property
    def forwarding(self) -> None:
        """None: each request has to be looked at for its sequence."""

    def submit(self, request: InferRequest, sink: Sink, *, needs_idle: bool = False) -> int:
        """See `ServedVersion`."""
        version, parts = self.new, self._parts
        if not request.flags & SEQUENCE_START and not version.has_sequence(request.correlation_id):
            olds = [old for old in reversed(self.olds) if old.has_sequence(request.correlation_id)]
            version = olds[0] if olds else version
        return version.submit(request, sink, needs_idle=needs_idle) * len(parts) + parts.index(version)

    def _part(self, key: int) -> tuple[ServedVersion, int]:
        number, position = divmod(key, len(self._parts))
        return self._parts[position], number

    def cancel(self, key: int) -> None:
        """See `ServedVersion`."""
        version, key = self._part(key)
        version.cancel(key)

    def reject_waiting(self, key: int, error: NaiadError) -> None:
        """See `ServedVersion`."""
        version, key = self._part(key)
        version.reject_waiting(key, error)

    def is_waiting(self, key: int) -> bool:
        """See `ServedVersion`."""
        version, key = self._part(key)
        return version.is_waiting(key)

    def waits_of(self, key: int) -> Sequence[Collection[Worker]]:
        """See `ServedVersion`."""
        version, key = self._part(key)
        return version.waits_of(key)

    def confirm_sent(self, key: int, count: int) -> None:
        """See `ServedVersion`."""
        version, key = self._part(key)
        version.confirm_sent(key, count)

    def drop_responses(self, key: int) -> None:
        """See `ServedVersion`."""
        version, key = self._part(key)
        version.drop_responses(key)

    # -- all versions -------------------------------------------------------------------------------------------

    def has_sequence(self, correlation_id: int | str) -> bool:
        """See `ServedVersion`."""
        return any(version.has_sequence(correlation_id) for version in (self.new, *self.olds))

    def finish_sequences(self) -> int:
        """See `ServedVersion`."""
        return sum(version.finish_sequences() for version in (self.new, *self.olds))

    @property
    def is_idle(self) -> bool:
        """See `ServedVersion`."""
        return all(version.is_idle for version in (self.new, *self.olds))

    def is_finishing_requests(self) -> bool:
        """See `ServedVersion`."""
        return any(version.is_finishing_requests() for version in (self.new, *self.olds))

    def maintain(self) -> None:
        """See `ServedVersion`."""
        for version in (self.new, *self.olds):
            version.maintain()

    # -- the new version ---------------------------------------------------------------------------------------

    @property
    def config(self) -> ModelConfig:
        """See `ServedVersion`."""
        return self.new.config

    @property
    def config_json(self) -> Mapping[str, Any]:
        """See `ServedVersion`."""
        return self.new.config_json

    @property
    def metadata(self) -> ModelMetadata:
        """See `ServedVersion`."""
        return self.new.metadata

    @property
    def version(self) -> int:
        """See `ServedVersion`."""
        return self.new.version

    @property
    def reason(self) -> str:
        """See `ServedVersion`."""
        return self.new.reason

    @property
    def is_lost(self) -> bool:
        """See `ServedVersion`."""
        return self.new.is_lost

    @property
    def device(self) -> int:
        """See `ServedVersion`. Nothing, as for all models with sequences."""
        return 0

    @property
    def shared_inputs(self) -> SharedInputs | None:
        """See `ServedVersion`."""
        return self.new.shared_inputs

    @property
    def instances(self) -> Sequence[Instance]:
        """See `ServedVersion`."""
        return self.new.instances

    @property
    def pending_count(self) -> int:
        """See `ServedVersion`."""
        return self.new.pending_count

    @property
    def totals(self) -> Statistics:
        """See `ServedVersion`."""
        return self.new.totals

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        """See `ServedVersion`."""
        return self.new.reserve_input(size, ahead)

    def keep_responses(self, cache: ResponseCache) -> None:
        """See `ServedVersion`."""
        self.new.keep_responses(cache)

    def is_ready(self) -> bool:
        """See `ServedVersion`."""
        return self.new.is_ready()

    def are_all_ready(self) -> bool:
        """See `ServedVersion`."""
        return self.new.are_all_ready()

    def statistics(self) -> ModelStatistics:
        """See `ServedVersion`."""
        return self.new.statistics()


def newest(version: ServedVersion) -> ServedVersion:
    """The version itself; of a handover, the version that new requests go to."""
    return version.new if isinstance(version, Handover) else version

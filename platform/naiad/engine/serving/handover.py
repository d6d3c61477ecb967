"""A reloaded version together with its predecessors, for as long as these have sequences in progress.

A sequence depends on what its instance remembers. Its requests therefore go to the version that has it, until the
sequence ends or is idle for too long; new sequences go to the new version. The reference drops such sequences: their
clients have to start again.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.config.model.model_config import ModelConfig
from naiad.engine.open_request import OpenRequest
from naiad.engine.served import SequenceOwner, Target, version_numbers
from naiad.protocol.inference import SEQUENCE_START, InferRequest
from naiad.protocol.metadata import ModelMetadata


class Handover:
    """Implements `Target`: requests of sequences that old versions have go to these, all others to the new one.

    The life of each version is its own: the registry and `ModelLoads` know the new one and the old ones themselves.
    """

    direct = None  # each request has to be looked at for its sequence
    device = 0  # nothing in GPU memory, as for all models with sequences
    gpus = None

    def __init__(self, olds: Sequence[Target], new: Target) -> None:
        self.olds = list(olds)  # the predecessors that still have sequences, oldest first
        self.new = new
        self.number = next(version_numbers)  # of this handover among all loads of all versions

    def __repr__(self) -> str:
        return f"<Handover of {self.olds!r} to {self.new!r}>"

    @property
    def config(self) -> ModelConfig:
        return self.new.config

    @property
    def metadata(self) -> ModelMetadata:
        return self.new.metadata

    @property
    def reason(self) -> str:
        return self.new.reason

    @property
    def open_sequences(self) -> int:
        return sum(version.open_sequences for version in (self.new, *self.olds))

    def accept(self, opened: OpenRequest) -> None:
        version, request = self.new, opened.request
        if not request.flags & SEQUENCE_START and not _has_sequence(version, request):
            olds = [old for old in reversed(self.olds) if _has_sequence(old, request)]
            version = olds[0] if olds else version
        version.accept(opened)


def _has_sequence(version: Target, request: InferRequest) -> bool:
    return isinstance(version, SequenceOwner) and version.has_sequence(request.correlation_id)

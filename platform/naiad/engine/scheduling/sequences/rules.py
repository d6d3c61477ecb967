"""Which requests a sequence batcher accepts, under which correlation id and flags, and its error texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from naiad_stub.memo import size_of

from naiad.core.errors import InvalidRequestError, NotReadyError
from naiad.engine.scheduling.interface import Schedulable
from naiad.protocol.inference import SEQUENCE_START

_MAX_LOST = 1024  # number of lost sequences to remember, so that their clients get an error that names the cause
_MAX_LOST_BYTES = 1 << 20  # bytes of their ids, which clients choose

_LOST = "the instance that held it ended; begin it again with the START flag"


class SequenceRules:
    """The rules of one model (CORE src/sequence_batch_scheduler/, whose texts these are)."""

    __slots__ = ("_last_id", "_lost", "_lost_bytes", "is_closed", "is_iterative", "lost_text", "model")

    def __init__(self, model: str, *, is_iterative: bool = False) -> None:
        self.model = model
        self.is_iterative = is_iterative  # whether a request without a correlation id starts a new sequence
        self.is_closed = False  # whether new sequences are rejected, because the server stops
        self.lost_text = f"the sequence of this request to model '{model}' was lost: {_LOST}"
        self._last_id = 0
        self._lost: OrderedDict[int | str, None] = OrderedDict()
        self._lost_bytes = 0

    def admit(self, item: Schedulable, known: Container[int | str]) -> tuple[int | str, int]:
        """Check a request; return its correlation id and flags. *known* are the sequences in progress.

        Raises:
            InvalidRequestError: If it has more than one row, no correlation id, or no START for an unknown sequence.
            NotReadyError: If its sequence was lost, or if new sequences are rejected.
        """
        if item.batch_size > 1:
            raise InvalidRequestError(
                f"inference request to model '{self.model}' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            )
        correlation_id, flags = item.correlation_id, item.flags
        if not correlation_id:
            if not self.is_iterative:
                raise InvalidRequestError(
                    f"inference request to model '{self.model}' must specify a non-zero or non-empty correlation ID"
                )
            correlation_id, flags = self._new_id(known), SEQUENCE_START
        if flags & SEQUENCE_START:
            if self.is_closed:
                raise NotReadyError(
                    "Server is stopping, scheduler for model has stopped accepting new inference requests"
                )
            if correlation_id in self._lost:
                del self._lost[correlation_id]
                self._lost_bytes -= size_of(correlation_id)
        elif correlation_id not in known:
            if correlation_id in self._lost:
                raise self.lost_error(correlation_id)
            raise InvalidRequestError(
                f"inference request for sequence {correlation_id} to model '{self.model}' must specify the START flag "
                "on the first request of the sequence"
            )
        return correlation_id, flags

    def remember_lost(self, correlation_id: int | str) -> None:
        """Remember a sequence that was lost with its instance, for the error of its further requests."""
        if correlation_id not in self._lost:
            self._lost_bytes += size_of(correlation_id)
        self._lost[correlation_id] = None
        while len(self._lost) > _MAX_LOST or self._lost_bytes > _MAX_LOST_BYTES:
            self._lost_bytes -= size_of(self._lost.popitem(last=False)[0])

    def lost_error(self, correlation_id: int | str) -> NotReadyError:
        return NotReadyError(f"sequence {correlation_id} of model '{self.model}' was lost: {_LOST}")

    def conflict_text(self, correlation_id: int | str) -> str:
        return (
            f"sequence {correlation_id} for model '{self.model}' has a conflict. The previous sequence did not end "
            "before this sequence start. Previous sequence will be terminated early."
        )

    def _new_id(self, known: Container[int | str]) -> int:
        self._last_id += 1
        while self._last_id in known:
            self._last_id += 1
        return self._last_id

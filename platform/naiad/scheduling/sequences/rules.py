"""Which requests a sequence batcher takes, under which correlation id, and its texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from naiad.errors import InvalidRequestError, NotReadyError
from naiad.protocol.inference import SEQUENCE_START
from naiad.scheduling.interface import Schedulable

__all__ = ["SequenceRules"]

_REMEMBERED = 1024
"""How many lost sequences are told from those that never began."""

_LOST = "the instance that held it ended; begin it again with the START flag"


class SequenceRules:
    """The rules of one model (CORE src/sequence_batch_scheduler/, whose texts these are).

    Attributes:
        model: Its name.
        is_iterative: Requests without a correlation id begin a sequence of their own.
        is_closed: No sequence begins any more.
        lost_text: What to say of a request whose sequence ended with its instance.
    """

    __slots__ = ("_last_id", "_lost", "is_closed", "is_iterative", "lost_text", "model")

    def __init__(self, model: str, *, is_iterative: bool = False) -> None:
        self.model = model
        self.is_iterative = is_iterative
        self.is_closed = False
        self.lost_text = f"the sequence of this request to model '{model}' was lost: {_LOST}"
        self._last_id = 0
        self._lost: OrderedDict[int | str, None] = OrderedDict()

    def admit(self, item: Schedulable, known: Container[int | str]) -> tuple[int | str, int]:
        """The correlation id and flags under which a request is taken, given the sequences in progress.

        Raises:
            InvalidRequestError: If it breaks the rules.
            NotReadyError: If its sequence was lost, or may not begin any more.
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
            self._lost.pop(correlation_id, None)
        elif correlation_id not in known:
            if correlation_id in self._lost:
                raise self.lost_error(correlation_id)
            raise InvalidRequestError(
                f"inference request for sequence {correlation_id} to model '{self.model}' must specify the START flag "
                "on the first request of the sequence"
            )
        return correlation_id, flags

    def lost(self, correlation_id: int | str) -> None:
        """A sequence ended with its instance; what comes of it shall be told so."""
        self._lost[correlation_id] = None
        if len(self._lost) > _REMEMBERED:
            self._lost.popitem(last=False)

    def lost_error(self, correlation_id: int | str) -> NotReadyError:
        """What to say of a request of such a sequence."""
        return NotReadyError(f"sequence {correlation_id} of model '{self.model}' was lost: {_LOST}")

    def conflict(self, correlation_id: int | str) -> str:
        """What to log of a second START."""
        return (
            f"sequence {correlation_id} for model '{self.model}' has a conflict. The previous sequence did not end "
            "before this sequence start. Previous sequence will be terminated early."
        )

    def _new_id(self, known: Container[int | str]) -> int:
        self._last_id += 1
        while self._last_id in known:
            self._last_id += 1
        return self._last_id

"""How many of the requests that wait form the next batch, and whether to wait for more of them.

The rules are the reference's (CORE src/dynamic_batch_scheduler.cc, `GetDynamicBatch`): a batch is a run of requests
from the head of the queue. The largest preferred size among them is sent at once; else the batch is sent when it
cannot grow (the next request does not fit in size or shape), when it is as large as the largest preferred size, or
when its oldest request has waited for the delay. After the delay everything that fits is sent, preferred or not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, Protocol

__all__ = ["BatchDecision", "BatchRule", "Batchable"]


class Batchable(Protocol):
    """A request as these rules see it: its rows, its shape key and when it came."""

    @property
    def size(self) -> int:
        """Rows it adds to a batch."""

    @property
    def key(self) -> Hashable | None:
        """Its shape key; None goes with any."""

    @property
    def queued_ns(self) -> int:
        """When it came."""


class BatchDecision(NamedTuple):
    """What to do with the head of a queue.

    Attributes:
        number: How many requests to send now; 0 for none.
        complete: The batch would not be larger if it were sent later.
        wake_ns: When to look again, if nothing is to be sent now.
        size: Rows of the requests looked at, if nothing is to be sent now.
        key: Their shape key.
        next_size: Below so many rows of the same shape nothing changes before `wake_ns`.
    """

    number: int
    complete: bool
    wake_ns: int = 0
    size: int = 0
    key: Hashable | None = None
    next_size: int = 0


class _Run(NamedTuple):
    """The requests that fit together: `number` of `size` rows, of which `best` make a preferred size (0: none do)."""

    number: int
    size: int
    best: int
    closed: bool
    oldest_ns: int
    key: Hashable | None


class BatchRule:
    """Limits and preferences of a model's batches.

    Attributes:
        max_size: Most rows in a batch.
        preferred: Sizes to prefer; the largest size alone if none is given, as normalising does.
        largest: The largest of them.
        delay_ns: How long a request may wait for others.
    """

    __slots__ = ("delay_ns", "largest", "max_size", "preferred")

    def __init__(self, max_batch_size: int, preferred: Iterable[int] = (), delay_us: int = 0) -> None:
        self.max_size = max(max_batch_size, 1)
        self.preferred = frozenset(preferred) or frozenset({self.max_size})
        self.largest = max(self.preferred)
        self.delay_ns = delay_us * 1000

    def form(self, entries: Iterable[Batchable], now_ns: int) -> BatchDecision:
        """Decide about the head of *entries*, which are in the order of the queue."""
        run = self._run(entries)
        if not run.number:
            return BatchDecision(0, complete=False)
        is_late = self.delay_ns != 0 and now_ns - run.oldest_ns >= self.delay_ns
        if run.best and not is_late:
            return BatchDecision(run.best, complete=run.closed or run.size >= self.largest)
        is_complete = run.closed or run.size >= self.largest
        if is_complete or is_late or not self.delay_ns:
            return BatchDecision(run.number, complete=is_complete)
        next_size = min(size for size in self.preferred if size > run.size)
        return BatchDecision(
            0,
            complete=False,
            wake_ns=run.oldest_ns + self.delay_ns,
            size=run.size,
            key=run.key,
            next_size=next_size,
        )

    def _run(self, entries: Iterable[Batchable]) -> _Run:
        count = size = best = 0
        closed, oldest_ns = False, 1 << 63
        key: Hashable | None = None
        for entry in entries:
            if count:
                total = size + entry.size
                if total > self.largest and not best:
                    best = count
                if total > self.max_size or (entry.key != key and entry.key is not None and key is not None):
                    closed = True
                    break
            count += 1
            size += entry.size
            oldest_ns = min(oldest_ns, entry.queued_ns)
            key = entry.key if key is None else key
            if size in self.preferred:
                best = count
            if size >= self.max_size:
                closed = True
                break
        return _Run(count, size, best, closed, oldest_ns, key)

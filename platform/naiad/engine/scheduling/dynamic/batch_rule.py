"""The rule that forms batches: how many queued requests to send now, or how long to wait for more.

Documented in Triton's model_configuration.md ("Dynamic Batcher": preferred batch sizes, delayed batching); the rules
are those of CORE src/dynamic_batch_scheduler.cc, `GetDynamicBatch`. The candidate is the longest run of requests at the
head of the queue that fit together in size (`max_batch_size`) and shape. Of it is sent:

1. the part that makes the largest preferred size, at once, if some part does and the delay has not expired;
2. otherwise everything, if the batch cannot grow (it is full, or the next request does not fit in size or shape), if
   it has at least the largest preferred size, if its oldest request has waited for `max_queue_delay_microseconds`, or
   if no delay is configured;
3. otherwise nothing yet: the batch waits for more requests until the delay of its oldest request expires.

Without `preferred_batch_size`, `max_batch_size` is the only preferred size (`normalise` adds it).
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from typing import NamedTuple, Protocol


class Batchable(Protocol):
    """A queued request as this rule sees it."""

    @property
    def size(self) -> int: ...

    @property
    def key(self) -> Hashable | None:
        """Its shape key; None is compatible with every key."""

    @property
    def queued_ns(self) -> int: ...


class BatchDecision(NamedTuple):
    """The decision about the head of a queue."""

    request_count: int
    is_complete: bool  # the batch would not be larger if it were sent later
    wake_ns: int = 0  # if the batch waits, when its delay expires
    key: Hashable | None = None  # their shape key
    # If the batch waits, the next preferred size: until the batch has that many rows, requests of the same shape do not
    # change the decision before `wake_ns`.
    next_size: int = 0


class _Candidate(NamedTuple):
    """The longest run of requests that fit together."""

    request_count: int
    size: int
    preferred_count: int  # how many of them make the largest preferred size; 0 if no part does
    is_closed: bool  # whether no further request can join
    oldest_ns: int
    key: Hashable | None


class BatchRule:
    """The batch sizes and the delay of a model."""

    __slots__ = ("delay_ns", "largest", "max_size", "preferred")

    def __init__(self, max_batch_size: int, preferred: Iterable[int] = (), delay_us: int = 0) -> None:
        self.max_size = max(max_batch_size, 1)
        self.preferred = frozenset(preferred) or frozenset({self.max_size})
        self.largest = max(self.preferred)
        self.delay_ns = delay_us * 1000

    def decide(self, entries: Iterable[Batchable], now_ns: int) -> BatchDecision:
        candidate = self._candidate(entries)
        if not candidate.request_count:
            return BatchDecision(0, is_complete=False)
        is_late = self.delay_ns != 0 and now_ns - candidate.oldest_ns >= self.delay_ns
        is_complete = candidate.is_closed or candidate.size >= self.largest
        if candidate.preferred_count and not is_late:
            return BatchDecision(candidate.preferred_count, is_complete=is_complete)
        if is_complete or is_late or not self.delay_ns:
            return BatchDecision(candidate.request_count, is_complete=is_complete)
        return BatchDecision(
            0,
            is_complete=False,
            wake_ns=candidate.oldest_ns + self.delay_ns,
            key=candidate.key,
            next_size=min(size for size in self.preferred if size > candidate.size),
        )

    def _candidate(self, entries: Iterable[Batchable]) -> _Candidate:
        count = size = preferred_count = 0
        is_closed, oldest_ns = False, sys.maxsize
        key: Hashable | None = None
        for entry in entries:
            if count:
                total = size + entry.size
                # Above the largest preferred size, a batch that fits below it counts as preferred, as in the reference.
                if total > self.largest and not preferred_count:
                    preferred_count = count
                if total > self.max_size or (entry.key != key and entry.key is not None and key is not None):
                    is_closed = True
                    break
            count += 1
            size += entry.size
            if entry.queued_ns < oldest_ns:  # noqa: PLR1730 - `min` would be a call for each request
                oldest_ns = entry.queued_ns
            if key is None:
                key = entry.key
            if size in self.preferred:
                preferred_count = count
            if size >= self.max_size:
                is_closed = True
                break
        return _Candidate(count, size, preferred_count, is_closed, oldest_ns, key)

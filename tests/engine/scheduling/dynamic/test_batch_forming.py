"""How many of the requests that wait form a batch."""

from __future__ import annotations

import pytest
from engine.scheduling.requests import MS, Request
from hypothesis import given
from hypothesis import strategies as st

from naiad.engine.scheduling.dynamic.batch_rule import BatchRule
from naiad.engine.scheduling.dynamic.queue import QueuedRequest

LATE = 5 * MS


def entries(*sizes_and_keys, queued=0):
    return [
        QueuedRequest(Request(index, batch_size=size, shape_key=key), 1, queued, needs_idle=False)
        for index, (size, key) in enumerate(
            each if isinstance(each, tuple) else (each, None) for each in sizes_and_keys
        )
    ]


@pytest.mark.parametrize(
    ("rule", "sizes", "now", "number", "complete"),
    [
        # Without a delay whatever is there goes, at most a full batch.
        (BatchRule(8), [1], 0, 1, False),
        (BatchRule(8), [1] * 7, 0, 7, False),
        (BatchRule(8), [1] * 20, 0, 8, True),
        (BatchRule(0), [1] * 3, 0, 1, True),
        # A request is never split.
        (BatchRule(8), [3, 3, 3], 0, 2, True),
        (BatchRule(8), [8, 1], 0, 1, True),
        # The largest preferred size among them, even if more are there.
        (BatchRule(8, [4]), [1] * 7, 0, 4, True),
        (BatchRule(8, [4]), [1] * 4, 0, 4, True),
        (BatchRule(8, [2, 4]), [1] * 7, 0, 4, True),
        (BatchRule(8, [2, 6]), [1] * 5, 0, 2, False),
        (BatchRule(8, [4]), [1] * 3, 0, 3, False),
        # No preferred size can be met any more: what comes before the request that passes the largest one.
        (BatchRule(8, [4]), [3, 2], 0, 1, True),
        # Shapes are not mixed.
        (BatchRule(8), [(1, "a"), (1, "a"), (1, "b"), (1, "a")], 0, 2, True),
        (BatchRule(8), [(1, None), (1, "a"), (1, "b")], 0, 2, True),
        # With a delay: wait for a preferred size ...
        (BatchRule(8, [4], 5000), [1] * 3, LATE - 1, 0, False),
        (BatchRule(8, [4], 5000), [1] * 5, LATE - 1, 4, True),
        (BatchRule(8, [2, 4], 5000), [1] * 3, LATE - 1, 2, False),
        # ... after it, for nothing, and take all that fits.
        (BatchRule(8, [4], 5000), [1] * 3, LATE, 3, False),
        (BatchRule(8, [4], 5000), [1] * 7, LATE, 7, True),
        # What cannot grow does not wait.
        (BatchRule(8, [4], 5000), [(1, "a"), (1, "b")], 1, 1, True),
        (BatchRule(8, [], 5000), [5, 4], 1, 1, True),
        (BatchRule(8), [], 0, 0, False),
    ],
)  # fmt: skip
def test_the_batch_follows_the_rules(rule, sizes, now, number, complete):
    formed = rule.decide(entries(*sizes), now)

    assert (formed.request_count, formed.is_complete) == (number, complete)


def test_a_waiting_batch_has_a_deadline_and_a_reason():
    rule = BatchRule(8, [2, 6], 5000)

    formed = rule.decide([*entries((1, "a"), queued=3 * MS)], 3 * MS)

    assert formed.wake_ns == 8 * MS
    assert (formed.key, formed.next_size) == ("a", 2)


@given(
    st.integers(0, 9),
    st.lists(st.integers(1, 9), max_size=3),
    st.integers(0, 10),
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([None, "a", "b"])), max_size=12),
    st.integers(0, 11 * MS),
)
def test_a_batch_is_never_too_large_and_never_of_two_shapes(largest, preferred, delay, waiting, now):
    limit = max(largest, 1)
    rule = BatchRule(largest, [size for size in preferred if size <= limit], delay * 1000)
    queue = entries(*[(min(size, limit), key) for size, key in waiting])

    formed = rule.decide(queue, now)
    batch = queue[: formed.request_count]

    assert sum(entry.size for entry in batch) <= limit
    assert len({entry.key for entry in batch} - {None}) <= 1
    if queue and (not delay or now >= delay * MS):
        assert batch, "what has waited for the delay must go"
    if queue and not batch:
        assert formed.wake_ns == delay * MS
        assert sum(entry.size for entry in queue) < formed.next_size <= rule.largest

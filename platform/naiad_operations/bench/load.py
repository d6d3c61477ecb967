"""Two kinds of loads: a number of requests in flight, or a rate at which requests are sent.

Closed loop: each of several workers sends its next request when the response to its last one has arrived. Open loop:
requests are sent when they are due, whether or not earlier ones have their responses, as independent clients do.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from naiad.core import clock
from naiad.core.errors import NaiadError

_NS_PER_MS = 1e6
_NS_PER_SECOND = 1e9
_YIELD_EVERY = 16  # requests of an open loop that are sent before the event loop turns
# Pause of a worker after an error: a server that refuses connections answers thousands of times a second.
_PAUSE_SECONDS = 0.05


MOST_IN_FLIGHT = 1000  # requests of an open loop that may be in flight; further ones are not sent, and count as errors


class LoadTarget(Protocol):
    """Where requests are sent."""

    async def open(self, workers: int) -> None:
        """Be ready for this number of requests at the same time."""

    async def send(self, worker: int) -> int:
        """Send one request; returns nanoseconds until the first response of a decoupled model, else 0."""


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """What one load measured."""

    concurrency: int
    rate: float = 0.0
    seconds: float = 0.0  # from the first request to the last response
    # Milliseconds of each successful request, in the order of their ends.
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    # Milliseconds until the first response, for models with any number of responses.
    first_ms: array[float] = field(default_factory=lambda: array("d"))
    errors: int = 0
    first_error: str = ""

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies_ms) / self.seconds if self.seconds else 0.0

    def add_error(self, message: str) -> None:
        self.errors += 1
        self.first_error = self.first_error or message


@asynccontextmanager
async def _tasks(result: LoadResult, timeout: float, seconds: float = 0.0) -> AsyncIterator[set[asyncio.Task[None]]]:
    """Tasks of a load of so many seconds, to be added: those that have not ended *timeout* seconds later are errors."""
    running: set[asyncio.Task[None]] = set()
    pending: set[asyncio.Task[None]] = set()
    try:
        yield running
        if running:
            _, pending = await asyncio.wait(set(running), timeout=seconds + timeout)
    finally:
        left = list(running)
        for task in left:
            task.cancel()
        ends = await asyncio.gather(*left, return_exceptions=True)
    for _ in pending:
        result.add_error(f"no response within {timeout:g} s")
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def _send(target: LoadTarget, worker: int, due: int, result: LoadResult) -> bool:
    """Send a request, whose latency begins when it was due; whether it succeeded."""
    try:
        first_ns = await target.send(worker)
    except NaiadError as error:
        result.add_error(error.message)
        return False
    result.latencies_ms.append((clock.monotonic_ns() - due) / _NS_PER_MS)
    if first_ns:
        result.first_ms.append(first_ns / _NS_PER_MS)
    return True


async def run_load(target: LoadTarget, concurrency: int, seconds: float, *, timeout: float) -> LoadResult:
    """Send requests for some seconds; those in flight then are waited for *timeout* seconds, and count."""
    await target.open(concurrency)
    result = LoadResult(concurrency=concurrency)
    started = clock.monotonic_ns()
    deadline = started + int(seconds * _NS_PER_SECOND)

    async def work(number: int) -> None:
        while (due := clock.monotonic_ns()) < deadline:
            if not await _send(target, number, due, result):
                await asyncio.sleep(_PAUSE_SECONDS)
            result.seconds = (clock.monotonic_ns() - started) / _NS_PER_SECOND

    async with _tasks(result, timeout, seconds) as running:
        running |= {asyncio.ensure_future(work(number)) for number in range(concurrency)}
    result.seconds = max(result.seconds, 1e-9)
    return result


async def run_paced_load(
    target: LoadTarget, rate: float, seconds: float, *, timeout: float, most: int = MOST_IN_FLIGHT
) -> LoadResult:
    """Send requests at a fixed rate for some seconds; those that are in flight then are waited for, and count.

    The latency of a request begins when it was due. So it also has the time by which the load generator or its
    connections were late: without that, a server that stops for a second would have one slow request.

    Args:
        timeout: Seconds that requests in flight have afterwards; those that take longer are errors.
    """
    result = LoadResult(concurrency=0, rate=rate)
    free = list(range(most))[::-1]
    await target.open(1)
    first = clock.monotonic_ns()
    total = max(int(rate * seconds), 1)

    async def send(worker: int, due: int) -> None:
        try:
            if await _send(target, worker, due, result):
                result.seconds = (clock.monotonic_ns() - first) / _NS_PER_SECOND
        finally:
            free.append(worker)

    async with _tasks(result, timeout) as running:
        for number in range(total):
            due = first + int(number / rate * _NS_PER_SECOND)
            while (wait := due - clock.monotonic_ns()) > 0:
                await asyncio.sleep(wait / _NS_PER_SECOND)
            if not number % _YIELD_EVERY:
                await asyncio.sleep(0)  # responses are read also where requests are late
            if not free:
                result.add_error(f"not sent: {most} requests were in flight")
                continue
            worker = free.pop()
            await target.open(worker + 1)
            task = asyncio.ensure_future(send(worker, due))
            running.add(task)
            task.add_done_callback(running.discard)
            result.concurrency = max(result.concurrency, most - len(free))
    result.seconds = max(result.seconds, seconds, 1e-9)
    return result


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The smallest of the ordered values that *percent* of them do not exceed; None of no values."""
    return ordered[max(ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else None

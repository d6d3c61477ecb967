"""Runs one load twice on a server, looks at what that holds before, between, during and after, and judges."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import json
from collections.abc import AsyncIterator, Sequence

from bench.endurance.account import Account
from bench.endurance.clients import Address
from bench.endurance.measure import MIB, Reading, read
from bench.endurance.scenarios import Scenario, Size

HOST_GROWTH = 8 * MIB
GUEST_GROWTH = 4 * MIB
"""Own memory that a process may have more of after the second half than after the first: fragments, not objects."""

_QUIET_SECONDS = 20.0
_BETWEEN = 0.5
_DURING = 2.0
_BAD_WORDS = ("Traceback (most recent call last)", "is killed", "could not be handled", "cannot handle", "ERROR:")


@dataclasses.dataclass
class Trial:
    """What came of one load.

    Attributes:
        name: The scenario's.
        account: Both halves together.
        before: Before anything was sent.
        between: After the first half and a quiet pause.
        most: The reading during the second half with the most memory.
        after: After the second half and a quiet pause.
    """

    name: str
    account: Account
    before: Reading
    between: Reading
    most: Reading
    after: Reading


async def run(scenario: Scenario, address: Address, size: Size) -> Trial:
    """Load the server twice and judge."""
    account = Account()
    before = await quiet(address)
    await scenario.load(address, account, size)
    between = await quiet(address)
    async with _watching(address) as seen:
        await scenario.load(address, account, size)
    after = await quiet(address)
    account.settle()
    trial = Trial(scenario.name, account, before, between, max(seen, key=_memory, default=after), after)
    for problem in (*grown(between, after), *_miscounted(scenario, address, account)):
        account.wrong(problem)
    return trial


async def quiet(address: Address) -> Reading:
    """When nothing changes any more: the server tidies up every few seconds, and closed connections take a moment."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _QUIET_SECONDS
    last = read(address.pid)
    while loop.time() < until:
        await asyncio.sleep(_BETWEEN)
        reading = read(address.pid)
        if not reading.segments and _countable(reading) == _countable(last):
            return reading
        last = reading
    return last


def grown(between: Reading, after: Reading) -> Sequence[str]:
    """What there is more of after the second half."""
    found = []
    if between.pids != after.pids:
        found.append(f"processes came and went: {sorted(between.pids)}, then {sorted(after.pids)}")
    if after.segments:
        found.append(f"{after.segments / MIB:.2f} MiB of segments are in use after everything was answered")
    pairs = [("the server", between.host, after.host, HOST_GROWTH)]
    pairs += [("a guest", *pair, GUEST_GROWTH) for pair in zip(between.guests, after.guests, strict=False)]
    for name, earlier, later, limit in pairs:
        if later.private - earlier.private > limit:
            found.append(f"memory of {name} went from {earlier.private / MIB:.1f} to {later.private / MIB:.1f} MiB")
        if later.descriptors > earlier.descriptors:
            found.append(f"descriptors of {name} went from {earlier.descriptors} to {later.descriptors}")
        if later.threads > earlier.threads:
            found.append(f"threads of {name} went from {earlier.threads} to {later.threads}")
    return found


def judge_log(log: str) -> Sequence[str]:
    """Lines that a server under right requests must not write."""
    return [line[:300] for line in log.splitlines() if any(word in line for word in _BAD_WORDS)][:3]


def _countable(reading: Reading) -> tuple[int, ...]:
    both = reading.host + reading.guest
    return both.descriptors, both.threads, both.pss // MIB


def _memory(reading: Reading) -> int:
    return reading.host.pss + reading.guest.pss


@contextlib.asynccontextmanager
async def _watching(address: Address) -> AsyncIterator[list[Reading]]:
    seen: list[Reading] = []

    async def watch() -> None:
        while True:
            seen.append(await asyncio.to_thread(read, address.pid))
            await asyncio.sleep(_DURING)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _miscounted(scenario: Scenario, address: Address, account: Account) -> Sequence[str]:
    """Models that inferred more or less often than was asked of them."""
    found = []
    for model, times in scenario.counts.items():
        with contextlib.closing(http.client.HTTPConnection(address.host, address.http_port, timeout=30)) as connection:
            connection.request("GET", f"/v2/models/{model}/stats")
            [statistics] = json.loads(connection.getresponse().read())["model_stats"]
        done = statistics["inference_count"]
        failed = statistics["inference_stats"]["fail"]["count"]
        if (done, failed) != (account.sent * times, 0):
            found.append(f"'{model}' inferred {done} times and failed {failed} times for {account.sent} requests")
    return found

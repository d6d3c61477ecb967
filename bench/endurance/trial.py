"""Runs one load three times on a server; measures the server before, between, during and after; checks the results."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import itertools
import json
from collections.abc import AsyncIterator, Sequence

from bench.endurance.account import Account
from bench.endurance.clients import Address
from bench.endurance.measure import MIB, Reading, read
from bench.endurance.scenarios import Scenario, Size

PARTS = 3
HOST_GROWTH = 2 * MIB
GUEST_GROWTH = 1 * MIB
"""Bytes by which a process's private memory may grow in each part after the first. Growth in some of the parts is
normal, until the allocator's heap has reached its size; a leak grows in every part."""
MOST_PARTS = 8
"""If something grew in every part, further parts run, up to this number, to see whether the growth ends."""

FURTHER = "a further process"
_QUIET_SECONDS = 20.0
_BETWEEN = 0.5
_DURING = 2.0
_BAD_WORDS = ("Traceback (most recent call last)", "is killed", "could not be handled", "cannot handle", "ERROR:")


@dataclasses.dataclass
class Trial:
    """The results of one load.

    Attributes:
        name: The scenario's name.
        account: The counts of all parts.
        before: The reading before the first request.
        pauses: The readings after each part and a pause.
        most: The reading with the most memory, of those during the parts after the first.
    """

    name: str
    account: Account
    before: Reading
    pauses: Sequence[Reading]
    most: Reading


async def run(
    scenario: Scenario, address: Address, size: Size, *, parts: int = PARTS, most_parts: int = MOST_PARTS
) -> Trial:
    """Load the server in *parts*, up to *most_parts* if something grew in each, and check the results."""
    account = Account()
    before = await quiet(address)
    await scenario.load(address, account, size)
    pauses = [await quiet(address)]
    async with _watching(address) as seen:
        while len(pauses) < parts or (len(pauses) < most_parts and grown(pauses)):
            await scenario.load(address, account, size)
            pauses.append(await quiet(address))
    account.settle()
    for problem in (*grown(pauses), *_miscounted(scenario, address, account)):
        account.wrong(problem)
    return Trial(scenario.name, account, before, pauses, max(seen, key=_memory, default=pauses[-1]))


async def quiet(address: Address) -> Reading:
    """Wait until readings are constant: the server releases idle memory every few seconds, connections close later."""
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


def grown(pauses: Sequence[Reading]) -> Sequence[str]:
    """Descriptions of the resources that grew from pause to pause."""
    first, last = pauses[0], pauses[-1]
    if first.pids != last.pids:
        return [f"the processes changed: {sorted(first.pids)}, then {sorted(last.pids)}"]
    found = []
    if last.segments:
        found.append(f"{last.segments / MIB:.2f} MiB of segments are in use after the last response")
    processes = [("the server", [reading.host for reading in pauses], HOST_GROWTH)]
    processes += [
        ("a guest", list(course), GUEST_GROWTH) for course in zip(*(each.guests for each in pauses), strict=True)
    ]
    processes += [
        (FURTHER, list(course), HOST_GROWTH) for course in zip(*(each.further for each in pauses), strict=True)
    ]
    for name, course, limit in processes:
        private = [held.private for held in course]
        if _least_step(private) > limit:
            found.append(f"memory of {name} grew each time: {', '.join(f'{size / MIB:.1f}' for size in private)} MiB")
        if _least_step([held.threads for held in course]) > 0:
            found.append(f"threads of {name} grew each time: {[held.threads for held in course]}")
        descriptors = [held.descriptors for held in course]
        # A frontend starts a process for long requests when the first one comes, and has a socket to it.
        if descriptors[-1] > descriptors[0] + (name == FURTHER):
            found.append(f"descriptors of {name}: {descriptors}")
    return found


def _least_step(values: Sequence[int]) -> int:
    return min(later - earlier for earlier, later in itertools.pairwise(values))


def judge_log(log: str) -> Sequence[str]:
    """The log lines that a server must not write if all requests are valid."""
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
    """Descriptions of the models whose inference count differs from the expected one."""
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

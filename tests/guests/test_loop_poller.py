"""A loop that is kept turning while messages follow each other closely, and the machines where it is not."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
import uvloop

from naiad.guests import loop_poller
from naiad.guests.loop_poller import LoopPoller, default_busy_poll_us, loop_poller_of

LONG_US = 60_000_000


async def _turns_of(beats: int, limit_us: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the loop gave way to others within 50 of its turns after so many beats."""
    given: list[None] = []
    monkeypatch.setattr(loop_poller.os, "sched_yield", lambda: given.append(None))
    own = LoopPoller(asyncio.get_running_loop(), limit_us)
    for _ in range(beats):
        own.on_activity()
    for _ in range(50):
        await asyncio.sleep(0)
    return len(given)


@pytest.mark.parametrize(("beats", "limit_us", "is_turning"), [(3, LONG_US, True), (2, LONG_US, False), (9, 0, False)])
def test_the_loop_polls_only_after_beats_that_are_close(
    beats: int, limit_us: int, monkeypatch: pytest.MonkeyPatch, *, is_turning: bool
) -> None:
    assert bool(uvloop.run(_turns_of(beats, limit_us, monkeypatch))) is is_turning


def test_the_loop_sleeps_again_when_no_beat_comes() -> None:
    async def wait_for_sleep() -> None:
        own = LoopPoller(asyncio.get_running_loop(), 2_000)
        while not own.is_turning:  # at the third beat, unless somebody else has the processor between two
            own.on_activity()
        while own.is_turning:
            await asyncio.sleep(0)

    async def in_time() -> None:
        await asyncio.wait_for(wait_for_sleep(), timeout=30)

    uvloop.run(in_time())


def test_guests_of_one_loop_share_its_pulse() -> None:
    async def two() -> tuple[LoopPoller, LoopPoller]:
        loop = asyncio.get_running_loop()
        return loop_poller_of(loop, 400), loop_poller_of(loop, 400)

    first, second = uvloop.run(two())
    other, _ = uvloop.run(two())

    assert first is second
    assert other is not first


def test_a_loop_that_ends_is_freed() -> None:
    async def poll() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.get_running_loop()
        loop_poller_of(loop, 400).on_activity()
        return weakref.ref(loop)

    ended = uvloop.run(poll())
    gc.collect()

    assert ended() is None


@pytest.mark.parametrize(("processors", "rationed", "expected"), [(2, False, 400), (1, False, 0), (8, True, 0)])
def test_polling_is_the_default_only_with_spare_processors(
    processors: int, expected: int, monkeypatch: pytest.MonkeyPatch, *, rationed: bool
) -> None:
    monkeypatch.setattr(loop_poller, "usable_processors", lambda: processors)
    monkeypatch.setattr(loop_poller, "processor_quota", lambda: 4.0 if rationed else None)

    assert default_busy_poll_us() == expected

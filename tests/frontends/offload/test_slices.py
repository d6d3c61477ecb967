"""Work in slices on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from naiad.frontends.offload import slices
from naiad.frontends.offload.slices import SliceScheduler


def counting(seen: list[str], name: str, count: int) -> Generator[None, None, str]:
    for _ in range(count):
        seen.append(name)
        yield
    return name


def failing() -> Generator[None, None, str]:
    yield
    raise ValueError("broken")


@pytest.fixture(autouse=True)
def shortest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step for each slice."""
    monkeypatch.setattr(slices, "_SLICE_SECONDS", 0.0)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_jobs_take_turns_and_others_run_in_between() -> None:
    scheduler = SliceScheduler()
    seen: list[str] = []
    done: list[str] = []
    for name in "ab":
        scheduler.start(counting(seen, name, 3), done.append, pytest.fail)
    while len(done) < 2:
        seen.append(".")
        await asyncio.sleep(0)
    assert "aa" not in "".join(seen)
    assert seen.count(".") >= 6
    assert done == ["a", "b"]


async def test_errors_are_reported_and_other_jobs_continue() -> None:
    scheduler = SliceScheduler()
    failed: list[Exception] = []
    done: list[str] = []
    scheduler.start(failing(), done.append, failed.append)
    scheduler.start(counting([], "a", 2), done.append, failed.append)
    await turns(20)
    assert [str(error) for error in failed] == ["broken"]
    assert done == ["a"]


async def test_cancelled_and_closed_jobs_call_nothing() -> None:
    scheduler = SliceScheduler()
    seen: list[str] = []
    called: list[object] = []
    job = scheduler.start(counting(seen, "a", 1000), called.append, called.append)
    scheduler.start(counting(seen, "b", 1000), called.append, called.append)
    await turns(3)
    job.cancel()
    scheduler.close()
    before = len(seen)
    await turns(20)
    assert (len(seen), called) == (before, [])


async def test_jobs_continue_after_a_callback_that_raises() -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
    scheduler = SliceScheduler()
    done: list[str] = []

    def raise_error(_: str) -> None:
        raise ValueError("broken callback")

    scheduler.start(counting([], "a", 1), raise_error, pytest.fail)
    scheduler.start(counting([], "b", 3), done.append, pytest.fail)
    await turns(20)
    assert (done, reported) == (["b"], ["broken callback"])

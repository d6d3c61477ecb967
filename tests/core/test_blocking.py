"""Blocking work that can be cancelled, and holds neither slots nor the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from naiad.core import blocking, child_processes
from naiad.core.child_processes import ended_with_group, read_output
from naiad.core.errors import NotReadyError


def wait_for_process(started):
    process = subprocess.Popen(["sleep", "4321"], start_new_session=True)
    with ended_with_group(process):
        started(process)
        process.wait()


async def cancelled(function):
    """Cancel a call of a function, which calls its argument when it has begun."""
    begun, loop, found = asyncio.Event(), asyncio.get_running_loop(), []

    def on_begin(value=None):
        found.append(value)
        loop.call_soon_threadsafe(begun.set)

    call = asyncio.ensure_future(blocking.run(function, on_begin))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    return found[0]


async def test_a_function_returns_its_result_or_raises_its_error():
    assert await blocking.run(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await blocking.run(int, "seven")


async def test_what_a_function_reports_is_called_on_the_loop_before_it_returns():
    seen = []

    def report(number):
        seen.append((number, threading.current_thread()))

    def work():
        for number in range(3):
            blocking.report(report, number)

    await blocking.run(work)
    assert seen == [(number, threading.current_thread()) for number in range(3)]
    blocking.report(report, 3)
    assert seen[-1][0] == 3


async def test_nothing_is_reported_once_the_call_is_cancelled():
    seen = []

    def work(begin):
        begin()
        with contextlib.suppress(blocking.WorkCancelledError):
            blocking.pause(4321)
        blocking.report(seen.append, 1)

    await cancelled(work)
    assert seen == []


def test_a_process_that_a_cancelled_call_waits_for_is_killed():
    process = asyncio.run(cancelled(wait_for_process))

    assert process.returncode == -9


def test_a_pause_ends_when_its_call_is_cancelled():
    def wait(begin):
        begin()
        blocking.pause(4321)

    asyncio.run(cancelled(wait))


def test_work_in_a_pool_belongs_to_the_call_that_has_given_it():
    def wait(begin):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(blocking.in_call(wait_for_process), begin).result()

    process = asyncio.run(cancelled(wait))

    assert process.returncode == -9


def test_a_lock_is_waited_for_until_the_call_is_cancelled():
    lock = threading.Lock()
    lock.acquire()

    def wait(begin):
        begin()
        blocking.acquire(lambda seconds: lock.acquire(timeout=seconds))

    asyncio.run(cancelled(wait))

    assert lock.locked()


def test_a_read_that_never_ends_does_not_hold_the_end_of_the_process(tmp_path):
    """As of a pipe without a writer, or of a dead file system: such a thread cannot be ended."""
    os.mkfifo(tmp_path / "pipe")
    code = f"""
import asyncio
from naiad.core import blocking

blocking._CLEANUP_SECONDS = 0.1

async def main():
    reading = asyncio.ensure_future(blocking.run(open, {str(tmp_path / "pipe")!r}))
    await asyncio.sleep(0)
    reading.cancel()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def lends_at_once(monkeypatch):
    monkeypatch.setattr(blocking, "_LENT_AFTER_SECONDS", 0.0)


@pytest.mark.usefixtures("lends_at_once")
async def test_a_slot_is_lent_while_its_holder_waits_and_taken_back_afterwards():
    slots, released = asyncio.Semaphore(1), threading.Event()

    async def first():
        async with blocking.LendableSlot(slots):
            await blocking.run(released.wait)
            assert slots.locked()

    waiting = asyncio.ensure_future(first())
    await asyncio.sleep(0)
    async with blocking.LendableSlot(slots):  # would wait for ever if the first one still had it
        released.set()
    await waiting
    assert not slots.locked()


@pytest.mark.usefixtures("lends_at_once")
async def test_a_holder_that_waits_is_ended_when_it_is_not_wanted_any_more():
    slots, begun, found = asyncio.Semaphore(1), asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def on_begin(process):
        found.append(process)
        loop.call_soon_threadsafe(begun.set)

    slot = blocking.LendableSlot(slots)

    async def hold():
        async with slot:
            await blocking.run(wait_for_process, on_begin)

    holding = asyncio.ensure_future(hold())
    await begun.wait()
    slot.end_when_lent()
    with pytest.raises(NotReadyError, match="ended by an unload"):
        await holding
    assert found[0].returncode == -9
    assert not slots.locked()


def test_each_item_has_its_result_in_order_and_the_first_error_ends_the_rest():
    assert blocking.run_each(int, ["1", "2", "3"], threads=2) == [1, 2, 3]
    with pytest.raises(ValueError, match="two"):
        blocking.run_each(int, ["1", "two", "3"], threads=1)


def test_a_cancelled_call_waits_for_no_thread_of_its_items(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def wait(begin):
        begin()
        blocking.run_each(open, [tmp_path / "pipe"], threads=1)

    asyncio.run(cancelled(wait))


def test_no_item_begins_after_the_caller_was_interrupted(monkeypatch):
    begun, goes_on, seen, workers = threading.Event(), threading.Event(), [], []

    def work(item):
        seen.append(item)
        workers.append(threading.current_thread())
        begun.set()
        goes_on.wait()

    def interrupt(_try_acquire):
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(blocking, "acquire", interrupt)
    with pytest.raises(KeyboardInterrupt):
        blocking.run_each(work, ["first", "second"], threads=1)
    goes_on.set()
    workers[0].join()

    assert seen == ["first"]


def test_of_what_a_process_prints_the_end_is_kept(monkeypatch):
    monkeypatch.setattr(child_processes, "_KEPT_BYTES", 8)
    command = ["sh", "-c", "yes | head -c 1000000; echo the end; echo error >&2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    with ended_with_group(process):
        assert read_output(process, time_limit=60) == ("the end\n", "error\n")
    assert process.returncode == 0

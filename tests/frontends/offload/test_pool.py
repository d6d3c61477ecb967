"""The pool of offload processes, with real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import psutil
import pytest
from frontends.offload import tasks

from naiad.core.errors import Code, NaiadError
from naiad.frontends.offload.pool import OffloadPool, OffloadTask


@pytest.fixture
def pool() -> OffloadPool:
    return OffloadPool(memory_limit=64 << 20)


@pytest.fixture
def run_coroutine(pool: OffloadPool) -> Callable[[Coroutine[Any, Any, object]], object]:
    """Runs a test of a pool, which is closed afterwards; no process is left."""

    async def closing(test: Coroutine[Any, Any, object]) -> None:
        try:
            await asyncio.wait_for(test, 60)
        finally:
            await pool.close()
            assert not pool.pid

    return lambda test: asyncio.run(closing(test))


def start(
    pool: OffloadPool, function: Callable[..., Any], content: bytes = b"", *arguments: object
) -> tuple[OffloadTask, asyncio.Future[Any]]:
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    task = pool.start(
        function, [content], arguments, lambda key: ("resolved", *key), result.set_result, result.set_exception
    )
    return task, result


async def test_function_gets_content_and_arguments_and_its_result_comes_back(pool: OffloadPool) -> None:
    for size in (0, 10, 3 << 20):  # written by the event loop, and by a thread
        content, long, deferred = await start(pool, tasks.join, b"c" * size, "argument")[1]
        assert content == b"c" * size
        assert isinstance(long, memoryview)
        assert long == b"x" * 100_000
        assert deferred == [("resolved", "key", 1), "argument"]


async def test_tasks_share_one_process_in_their_order(pool: OffloadPool) -> None:
    started = [start(pool, tasks.pid)[1] for _ in range(5)]
    assert len({await each for each in started}) == 1


async def test_errors_of_a_function_are_raised(pool: OffloadPool) -> None:
    with pytest.raises(NaiadError, match="refused") as caught:
        await start(pool, tasks.refuse)[1]
    assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(NaiadError, match=r"internal error; the server's log has the details"):
        await start(pool, tasks.fail)[1]
    assert await start(pool, tasks.pid)[1] == pool.pid


async def test_process_that_dies_fails_its_task_alone(pool: OffloadPool) -> None:
    first, died, next_one = start(pool, tasks.pid)[1], start(pool, tasks.die, b"abc")[1], start(pool, tasks.pid)[1]
    with pytest.raises(NaiadError, match=r"the process that was reading its 3 bytes has died") as caught:
        await died
    assert caught.value.code is Code.UNAVAILABLE
    assert await first != await next_one


async def test_memory_of_a_task_is_limited(pool: OffloadPool) -> None:
    assert await start(pool, tasks.allocate, b"", 50 << 20)[1] == 50 << 20
    with pytest.raises(NaiadError, match=r"its 2 bytes need more than 64 MiB of memory; .* --memory-limit-requests"):
        await start(pool, tasks.allocate, b"ab", 200 << 20)[1]
    assert await start(pool, tasks.allocate, b"", 50 << 20)[1] == 50 << 20


async def test_cancelled_tasks_are_not_run_and_end_their_process_if_they_are_long(pool: OffloadPool) -> None:
    running, result = start(pool, tasks.hold, bytes(9 << 20))
    waiting, never = start(pool, tasks.hold)
    last = start(pool, tasks.pid)[1]
    pid = pool.pid
    waiting.cancel()
    running.cancel()
    assert await last != pid
    assert not result.done()
    assert not never.done()


async def test_process_without_tasks_ends(pool: OffloadPool) -> None:
    pool._idle_seconds = 0.05
    pid = await start(pool, tasks.pid)[1]
    while pool.pid or psutil.pid_exists(pid):
        await asyncio.sleep(0.01)


async def test_closed_pool_fails_its_tasks(pool: OffloadPool) -> None:
    results = [start(pool, tasks.hold)[1] for _ in range(2)]
    await pool.close()
    results.append(start(pool, tasks.pid)[1])
    for result in results:
        with pytest.raises(NaiadError, match="the server is stopping"):
            await result


async def test_system_that_starts_no_process_fails_the_task(pool: OffloadPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(NaiadError, match="no process could be started for it: No such file or directory"):
        await start(pool, tasks.pid)[1]

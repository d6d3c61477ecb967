"""An event loop on a thread of its own, for callers who have none or another one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from naiad.inprocess.errors import InvalidArgumentError

__all__ = ["LoopThread"]

_T = TypeVar("_T")
_CLOSED = "Server not started"
_GLANCE_SECONDS = 0.5


class LoopThread:
    """Runs an event loop until it is closed.

    The thread is a daemon, so a program that forgets to close it ends all the same.
    """

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._is_closing = False
        self._loop = uvloop.new_event_loop()
        # One that `close` can end without a further thread: at the end of a program none can be started.
        self._workers = _Workers(thread_name_prefix=f"{name}-worker")
        self._loop.set_default_executor(self._workers)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end and return what it returns; where the wait is interrupted, it is cancelled."""
        with self._lock:
            if self._is_closing:
                work.close()
                raise InvalidArgumentError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return _waited(future)
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., _T], *args: object) -> _T:
        """Call a function on the loop's thread and return what it returns: cheaper than a coroutine."""
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        with self._lock:
            if self._is_closing:
                raise InvalidArgumentError(_CLOSED)
            self._loop.call_soon_threadsafe(_answer, future, function, args)
        return future.result()

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the loop's thread soon; not at all once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def close(self) -> None:
        """End the loop and its threads; whoever waits for something on it gets it cancelled."""
        with self._lock:
            self._is_closing = True
        asyncio.run_coroutine_threadsafe(self._wind_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._workers.shutdown()
        self._loop.close()

    async def _wind_down(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def _waited(future: concurrent.futures.Future[_T]) -> _T:
    """The result of something that may take long.

    A signal whose handler is due while the caller's thread gets ready to sleep does not wake it: Python looks for
    signals before and after, but the sleep itself has begun by then. Ctrl-C would be lost, so it is left now and then.
    """
    while True:
        try:
            return future.result(_GLANCE_SECONDS)
        except concurrent.futures.TimeoutError:
            if future.done():  # meanwhile, or that was its own
                return future.result()


class _Workers(concurrent.futures.ThreadPoolExecutor):
    """Threads for what blocks. At the end of a program they take nothing any more; the loop's thread does it then."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[_T]:
        """Call a function on a thread, if there are threads."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            future: concurrent.futures.Future[_T] = concurrent.futures.Future()
            _answer(future, lambda: fn(*args, **kwargs), ())
            return future


def _answer(future: concurrent.futures.Future[Any], function: Callable[..., Any], args: tuple[object, ...]) -> None:
    try:
        future.set_result(function(*args))
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)

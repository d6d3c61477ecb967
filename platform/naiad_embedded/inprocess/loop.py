"""An event loop on a separate thread, for callers that have no event loop or another one.

How the threads and the loop work together
------------------------------------------

The engine is single-threaded: all its state belongs to one event loop, and only the loop's thread may call it. A
`LoopThread` runs that loop. Threads of the program reach it in three ways:

- `run` starts a coroutine on the loop and blocks until it ends (load, unload, start, stop).
- `call` calls a function on the loop and blocks until it returns; that costs less than a coroutine, and `Model.infer`
  does it for each request.
- `post` calls a function on the loop and does not wait (cancel, "a response has been read").

`run` and `call` raise the API's exceptions for errors of the engine.

The other direction needs no waiting: the loop puts responses into queues that the callers' threads read (`response`).
The loop's thread must never call `run` or `call`: they would deadlock.

Blocking work of the engine (files, archives) runs on worker threads of the loop's default executor. One call stays on
the caller's thread: registering a repository reads its folder, and `Repositories` replaces its lists instead of
changing them.

Two facts about the end of a Python program shape this module. From `threading._shutdown` on, no thread can be started
and `ThreadPoolExecutor.submit` raises, but `atexit` handlers run later and have to stop servers that still run;
`_WorkerThreads` therefore falls back to the calling thread. And a daemon thread does not keep a program alive that
forgets to stop its server.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from naiad_embedded.inprocess.errors import InvalidArgumentError, translate_errors

_T = TypeVar("_T")
_CLOSED = "Server not started"
_SIGNAL_POLL_SECONDS = 0.5


class LoopThread:
    """Runs an event loop on a daemon thread until it is closed."""

    def __init__(self, name: str) -> None:
        # Guards `_is_closing`: work is submitted before `close` drains the loop, or not at all.
        self._lock = threading.Lock()
        self._is_closing = False
        self._loop = uvloop.new_event_loop()
        # An executor that `close` shuts down itself. `loop.shutdown_default_executor` starts a thread to wait for the
        # others, and at the end of a program no thread can be started.
        self._workers = _WorkerThreads(thread_name_prefix=f"{name}-worker")
        self._loop.set_default_executor(self._workers)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @translate_errors()
    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of a coroutine that runs on the loop; an interrupted wait (Ctrl-C) cancels the coroutine."""
        with self._lock:
            if self._is_closing:
                work.close()
                raise InvalidArgumentError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return _wait_interruptibly(future)
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # as in `call`

    @translate_errors()
    def call(self, function: Callable[..., _T], *args: object) -> _T:
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        with self._lock:
            if self._is_closing:
                raise InvalidArgumentError(_CLOSED)
            self._loop.call_soon_threadsafe(_resolve, future, function, args)
        try:
            return future.result()
        finally:
            del future  # an error that it holds refers to this frame: see `errors.fresh`

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the loop's thread without waiting; a closed loop ignores it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
        asyncio.run_coroutine_threadsafe(self._cancel_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._workers.shutdown()
        self._loop.close()

    async def _cancel_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _wait_interruptibly(future: concurrent.futures.Future[_T]) -> _T:
    """The result of a future, with a wait that Ctrl-C ends.

    Python runs signal handlers between bytecodes. A signal that arrives after the last check and before the thread
    blocks in the lock does not wake the lock, so an endless wait could miss Ctrl-C. The wait therefore returns from the
    lock every half second.
    """
    try:
        while True:
            try:
                return future.result(_SIGNAL_POLL_SECONDS)
            except concurrent.futures.TimeoutError:
                # A coroutine's own TimeoutError is the same class: it is the result of a future that is done.
                if future.done():
                    return future.result()
    finally:
        del future  # as in `LoopThread.call`


class _WorkerThreads(concurrent.futures.ThreadPoolExecutor):
    """A thread pool that still works at the end of a program, on the calling thread."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[_T]:
        """Call a function on a worker thread; on the calling thread if no thread can be started."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            future: concurrent.futures.Future[_T] = concurrent.futures.Future()
            _resolve(future, lambda: fn(*args, **kwargs), ())
            return future


def _resolve(future: concurrent.futures.Future[Any], function: Callable[..., Any], args: tuple[object, ...]) -> None:
    try:
        future.set_result(function(*args))
    except BaseException as error:  # noqa: BLE001 - `future.result` raises it in the caller's thread
        future.set_exception(error)
    finally:
        del future  # as in `LoopThread.call`

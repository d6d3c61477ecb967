"""Blocking work in threads that hold neither other work nor the end of the process, and that can be cancelled.

`asyncio.to_thread` has a few threads in all, which the end of the loop waits for. Here each call has a daemon thread of
its own: a read of a dead network file system keeps that thread alone. A call that is cancelled ends the processes and
connections that its function waits for, which register with `on_cancel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar, cast

from naiad.core.errors import NotReadyError

_T = TypeVar("_T")
_I = TypeVar("_I")

_CLEANUP_SECONDS = 3.0  # for a cancelled function to remove what it has begun; one still blocked is left alone
_LOCK_SECONDS = 0.25
_LENT_AFTER_SECONDS = 1.0


class WorkCancelledError(BaseException):
    """The call that the function belongs to was cancelled. Not an `Exception`: nothing may try the work again."""


class _Cancellation:
    """Whether a call was cancelled, and what to call then. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_set = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], None]] = {}

    def set(self) -> None:
        with self._lock:
            self.is_set.set()
            for callback in self._callbacks.values():
                callback()

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        key = object()
        with self._lock:
            self._callbacks[key] = callback
            if self.is_set.is_set():
                callback()
        try:
            yield
        finally:
            with self._lock:
                del self._callbacks[key]


_current: contextvars.ContextVar[_Cancellation | None] = contextvars.ContextVar("cancellation", default=None)


class _DaemonThreads(Executor):
    """Starts a daemon thread for each function: the interpreter's end does not wait for these."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        future: Future[_T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - as every executor: the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="naiad-blocking", daemon=True).start()
        return future


_threads = _DaemonThreads()


class LendableSlot:
    """One of a number of slots, held in its context by the tasks that run in it; None for one that is not counted.

    A function of `run` that takes longer than a second lends the slot to others until it has returned. Whatever it
    waits for, such as an index of packages or a dead file system, then holds none of the slots.
    """

    def __init__(self, slots: asyncio.Semaphore | None) -> None:
        self._slots = slots
        self._is_held = False
        self._unwanted = asyncio.Event()
        self._has_ended = False
        self._token: contextvars.Token[LendableSlot | None] | None = None

    async def __aenter__(self) -> LendableSlot:  # noqa: PYI034 - typing.Self needs Python 3.11
        await self._take()
        self._token = _slot.set(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._token is not None
        _slot.reset(self._token)
        self._lend()

    def end_when_lent(self) -> None:
        """End the function that the slot is lent for, now or as soon as it is lent."""
        self._unwanted.set()

    async def wait(self, working: asyncio.Future[Any]) -> None:
        """Wait for a function; raises `NotReadyError` if the slot is lent and its holder is not wanted any more."""
        if not self._has_ended:
            await asyncio.wait([working], timeout=_LENT_AFTER_SECONDS)
            if working.done():
                return
            self._lend()
            unwanted = asyncio.ensure_future(self._unwanted.wait())
            try:
                await asyncio.wait([working, unwanted], return_when=asyncio.FIRST_COMPLETED)
            finally:
                unwanted.cancel()
            self._has_ended = not working.done()
        if self._has_ended:
            raise NotReadyError("the load was ended by an unload")
        await self._take()

    async def _take(self) -> None:
        if self._slots is not None and not self._is_held:
            await self._slots.acquire()
        self._is_held = True

    def _lend(self) -> None:
        if self._slots is not None and self._is_held:
            self._slots.release()
        self._is_held = False


_slot: contextvars.ContextVar[LendableSlot | None] = contextvars.ContextVar("slot", default=None)


async def run(function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """The result of a function that blocks, called in a thread with the context of the caller.

    If the caller is cancelled, the function is cancelled too and gets a few seconds to remove what it has begun.
    """
    cancellation = _Cancellation(asyncio.get_running_loop())
    context = contextvars.copy_context()
    context.run(_current.set, cancellation)

    def work() -> tuple[_T | None, BaseException | None]:
        # As a value: a future logs an exception that nobody reads, and its waiter may be cancelled.
        try:
            return context.run(function, *args, **kwargs), None
        except BaseException as error:  # noqa: BLE001 - raised below
            return None, error

    working = cancellation.loop.run_in_executor(_threads, work)
    slot = _slot.get()
    try:
        if slot is not None:
            await slot.wait(working)
        result, error = await asyncio.shield(working)
    except (asyncio.CancelledError, NotReadyError):
        cancellation.set()
        await asyncio.wait([working], timeout=_CLEANUP_SECONDS)
        raise
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    return cast("_T", result)


def in_call(function: Callable[..., _T]) -> Callable[..., _T]:
    """A function that belongs to the caller's call also in other threads, such as those of a pool."""
    cancellation = _current.get()

    def call(*args: Any, **kwargs: Any) -> _T:
        token = _current.set(cancellation)
        try:
            return function(*args, **kwargs)
        finally:
            _current.reset(token)

    return call


def run_each(function: Callable[[_I], _T], items: Iterable[_I], *, threads: int) -> list[_T]:
    """The results of a function for each item, of a few threads; the first error ends it.

    As the pool of `concurrent.futures`, but a thread that is still blocked when the call is cancelled holds nobody.
    """
    jobs = deque((item, Future[_T]()) for item in items)
    futures = [future for _, future in jobs]
    call = in_call(function)

    def work() -> None:
        while True:
            try:
                item, future = jobs.popleft()
            except IndexError:
                return
            try:
                future.set_result(call(item))
            except BaseException as error:  # noqa: BLE001 - as every executor: the caller gets it
                jobs.clear()
                future.set_exception(error)

    workers = [threading.Thread(target=work, name="naiad-each", daemon=True) for _ in range(min(threads, len(jobs)))]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            acquire(partial(_has_ended, worker))
    finally:
        jobs.clear()  # a cancelled or interrupted caller removes its files, so no item may begin after that
    done = [future for future in futures if future.done()]
    for future in done:
        if (error := future.exception()) is not None:
            raise error
    return [future.result() for future in done]


def _has_ended(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()


def check_cancelled() -> None:
    """Raise `WorkCancelledError` if the call that this function belongs to was cancelled."""
    cancellation = _current.get()
    if cancellation is not None and cancellation.is_set.is_set():
        raise WorkCancelledError


def report(callback: Callable[..., None], *arguments: Any) -> None:
    """Have *callback* called on the caller's loop, before the call returns; not if the call is cancelled before that.

    Does not wait for it. Outside of a call, it is called at once.
    """
    cancellation = _current.get()
    if cancellation is None:
        callback(*arguments)
        return

    def call() -> None:
        if not cancellation.is_set.is_set():
            callback(*arguments)

    with contextlib.suppress(RuntimeError):  # the loop is closed: the call was cancelled long ago
        cancellation.loop.call_soon_threadsafe(call)


@contextlib.contextmanager
def on_cancel(callback: Callable[[], None]) -> Iterator[None]:
    """A context in which *callback* is called, in any thread, once the call that this function belongs to is cancelled.

    It makes the function's wait fail; whatever error that has, the context raises `WorkCancelledError` in its place.
    """
    cancellation = _current.get()
    if cancellation is None:
        yield
        return
    with cancellation.calling(callback):
        try:
            yield
        except Exception:
            check_cancelled()
            raise
        check_cancelled()


def pause(seconds: float) -> None:
    """Sleep; raises `WorkCancelledError` as soon as the call is cancelled."""
    cancellation = _current.get()
    (threading.Event() if cancellation is None else cancellation.is_set).wait(seconds)
    check_cancelled()


def acquire(try_acquire: Callable[[float], bool]) -> None:
    """Acquire a lock by *try_acquire*, which waits for some seconds; `WorkCancelledError` if the call is cancelled."""
    while not try_acquire(_LOCK_SECONDS):
        check_cancelled()


@contextlib.contextmanager
def held(slots: threading.Semaphore) -> Iterator[None]:
    """A context that holds one of *slots*; waits for it as `acquire` does."""
    acquire(lambda seconds: slots.acquire(timeout=seconds))
    try:
        yield
    finally:
        slots.release()

"""Offload processes as the host sees them: started for a task, ended after a pause, replaced when they die."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from naiad.core.child_processes import start_own_code
from naiad.core.errors import Code, NaiadError
from naiad.frontends.offload.messages import (
    OUTCOME_HEAD,
    TASK_HEAD,
    OutcomeKind,
    read_outcome,
    written_memory,
)
from naiad.protocol.inference import Buffer

logger = logging.getLogger("naiad.offload")

_IDLE_SECONDS = 30.0  # How long a process without a task is kept. A start costs a quarter of a second.
_WRITTEN_ON_LOOP = 1 << 20  # contents up to this are written on the event loop, in half a millisecond; else on a thread
_KILLED_FROM = 8 << 20  # content from which a cancelled task is ended with its process; less is cheaper to finish
_BASE_MEMORY = 192 << 20
_MEMORY_FACTOR = 32
"""Memory that a task may use: the base, and so many bytes for each byte of content. As Python's objects, a list of
numbers such as `0.5` takes 8 times its JSON, a list of short strings 16 times, lists of one number 24 times."""
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "HOME")

Resolve = Callable[[tuple[Any, ...]], Any]


@dataclass(slots=True, eq=False)
class OffloadTask:
    """A task of the pool, until it is done or cancelled."""

    _pool: OffloadPool | None
    function: Callable[..., Any]
    content: Sequence[Buffer]
    arguments: tuple[Any, ...]
    resolve: Resolve
    on_done: Callable[[Any], None]
    on_failed: Callable[[Exception], None]
    size: int
    process: OffloadProcess | None = None

    @property
    def is_over(self) -> bool:
        return self._pool is None

    def cancel(self) -> None:
        """End the task; neither callback is called any more."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.on_cancel(self)
            self.content = ()

    def succeed(self, value: Any) -> None:
        self._end(self.on_done, value)

    def fail(self, error: Exception) -> None:
        self._end(self.on_failed, error)

    def _end(self, report: Callable[[Any], None], result: Any) -> None:
        if self._pool is not None:
            self._pool = None
            self.content = ()
            report(result)


class OffloadPool:
    """Runs functions in a process of the host's interpreter, one after the other.

    A function and its arguments are pickled, so that both must be importable there. A function gets the content of its
    task as a view of shared memory, then the arguments. What it returns is described in `messages`.
    """

    def __init__(self, *, idle_seconds: float = _IDLE_SECONDS, memory_limit: int | None = None) -> None:
        """A pool without process; a task may use *memory_limit* bytes, or less if it has little content."""
        self._memory_limit = memory_limit
        self._idle_seconds = idle_seconds
        self._process: OffloadProcess | None = None  # which is replaced when it ends
        self._waiting: deque[OffloadTask] = deque()
        self._reaping: set[asyncio.Future[int]] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<OffloadPool process={self.pid} waiting={len(self._waiting)}>"

    @property
    def pid(self) -> int:
        """The id of its process; 0 without one."""
        return 0 if self._process is None else self._process.pid

    def start(
        self,
        function: Callable[..., Any],
        content: Sequence[Buffer],
        arguments: tuple[Any, ...],
        resolve: Resolve,  # returns the object for the key of a `Deferred` in the result
        on_done: Callable[[Any], None],
        # Called with the exception that the function or *resolve* raised, or with a `NaiadError` if the function needs
        # too much memory or its process dies.
        on_failed: Callable[[Exception], None],
    ) -> OffloadTask:
        """Run a function, after the tasks that were started before."""
        task = OffloadTask(self, function, content, arguments, resolve, on_done, on_failed, sum(map(len, content)))
        self._waiting.append(task)
        self.dispatch()
        return task

    def memory_of(self, task: OffloadTask) -> int:
        needed = _BASE_MEMORY + _MEMORY_FACTOR * task.size
        return needed if self._memory_limit is None else min(needed, self._memory_limit)

    async def close(self) -> None:
        """End the process; tasks fail."""
        self._is_closed = True
        if self._process is not None:
            self._process.end("the server is stopping")
        while self._waiting:
            self._waiting.popleft().fail(_closed_error())
        while self._reaping:
            await asyncio.wait(tuple(self._reaping))

    # -- for tasks and processes --------------------------------------------------------------------------------

    def on_cancel(self, task: OffloadTask) -> None:
        if task.process is None:
            if task in self._waiting:
                self._waiting.remove(task)
        elif task.size >= _KILLED_FROM:
            task.process.end("its task was cancelled")

    def on_end(self, process: OffloadProcess, reaping: asyncio.Future[int]) -> None:
        if process is self._process:
            self._process = None
        self._reaping.add(reaping)
        reaping.add_done_callback(self._reaping.discard)
        self.dispatch()

    def dispatch(self) -> None:
        """Begin the next task, unless the process has one."""
        while self._waiting and (self._process is None or self._process.task is None):
            task = self._waiting.popleft()
            if self._is_closed:
                _fail_later(task, _closed_error())
                continue
            if self._process is None:
                try:
                    self._process = OffloadProcess(self, self._idle_seconds)
                except OSError as error:
                    logger.error("cannot start a process that reads long requests: %s", error)  # noqa: TRY400 - the cause is in the text
                    text = f"cannot read the request: no process could be started for it: {error.strerror or error}"
                    _fail_later(task, NaiadError(text, code=Code.UNAVAILABLE))
                    continue
            self._process.begin(task)


class OffloadProcess:
    """A process of the pool, until it is idle for long, dies or is ended."""

    def __init__(self, pool: OffloadPool, idle_seconds: float) -> None:
        self._pool = pool
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self.task: OffloadTask | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._channel, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            try:
                environ = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
                self._process = start_own_code("naiad.frontends.offload.process:run_tasks", there.fileno(), environ)
            except BaseException:
                self._channel.close()
                raise
        self.pid = self._process.pid
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel.fileno(), self._on_readable)

    def __repr__(self) -> str:
        return f"<OffloadProcess pid={self.pid} {'busy' if self.task is not None else 'idle'}>"

    def begin(self, task: OffloadTask) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self.task = task
        task.process = self
        text = pickle.dumps((task.function, task.arguments), protocol=5)
        parts = [text, *task.content]
        size = task.size
        head = TASK_HEAD.pack(len(text), size, self._pool.memory_of(task))
        if size <= _WRITTEN_ON_LOOP:
            self._send(head, written_memory(parts))
        else:
            writing = self._loop.run_in_executor(None, written_memory, parts)
            writing.add_done_callback(lambda done: self._on_written(head, done))

    def _on_written(self, head: bytes, writing: asyncio.Future[int]) -> None:
        error = writing.exception()
        if error is None:
            self._send(head, writing.result())
        elif not self._is_ended:
            logger.error("cannot pass a request to an offload process: no shared memory: %s", error)
            self._finish_task(
                lambda task: task.fail(
                    NaiadError("cannot read the request: no shared memory for it; send it again", code=Code.UNAVAILABLE)
                )
            )

    def _send(self, head: bytes, memory: int) -> None:
        try:
            if not self._is_ended:
                socket.send_fds(self._channel, [head], [memory])
        except OSError:
            self.end("it does not take tasks")
        finally:
            os.close(memory)

    def _on_readable(self) -> None:
        try:
            head, descriptors, _, _ = socket.recv_fds(self._channel, OUTCOME_HEAD.size, 1)
        except BlockingIOError:
            return
        except OSError:
            head, descriptors = b"", []
        if not head or not descriptors:
            self.end("")
            return
        try:
            self._finish_task(lambda task: self._report(task, head, descriptors[0]))
        finally:
            os.close(descriptors[0])

    def _finish_task(self, report: Callable[[OffloadTask], None]) -> None:
        task, self.task = self.task, None
        self._idle_timer = self._loop.call_later(self._idle_seconds, self.end, "it was idle")
        try:
            if task is not None and not task.is_over:
                report(task)
        finally:  # an error of one task's callbacks must not keep the waiting tasks
            self._pool.dispatch()

    def _report(self, task: OffloadTask, head: bytes, memory: int) -> None:
        try:
            outcome = read_outcome(head, memory, task.resolve)
        except Exception as error:  # noqa: BLE001 - for example an unknown region of shared memory
            task.fail(error)
            return
        if outcome.kind is OutcomeKind.VALUE:
            task.succeed(outcome.value)
        elif outcome.kind is OutcomeKind.ERROR:
            task.fail(outcome.value)
        elif outcome.kind is OutcomeKind.OUT_OF_MEMORY:
            task.fail(_memory_error(task, self._pool.memory_of(task)))
        else:
            logger.error("cannot read a request: unexpected error\n%s", outcome.value)
            task.fail(NaiadError("internal error; the server's log has the details", code=Code.INTERNAL))

    def end(self, reason: str) -> None:
        """End the process. Its task fails, unless it was cancelled; *reason* is for the log, empty if it has died."""
        if self._is_ended:
            return
        self._is_ended = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        self._process.kill()  # harmless if it has died: it is not reaped yet, so that the id is still its own
        task, self.task = self.task, None
        # Not awaited on the loop: freeing a gigabyte takes the kernel some tenths of a second.
        reaping = self._loop.run_in_executor(None, self._process.wait)
        if not reason:
            reaping.add_done_callback(lambda done: _log_death(self.pid, done.result()))
        self._pool.on_end(self, reaping)
        if task is not None and not task.is_over:
            task.fail(_closed_error() if reason else _death_error(task, self._pool.memory_of(task)))


def _fail_later(task: OffloadTask, error: NaiadError) -> None:
    """Report an error when the code that started the task has its object."""
    asyncio.get_running_loop().call_soon(task.fail, error)


def _memory_error(task: OffloadTask, limit: int) -> NaiadError:
    return NaiadError(
        f"cannot read the request: its {task.size} bytes need more than {limit >> 20} MiB of memory; send tensors in "
        "binary, or raise --memory-limit-requests",
        code=Code.UNAVAILABLE,
    )


def _death_error(task: OffloadTask, limit: int) -> NaiadError:
    return NaiadError(
        f"cannot read the request: the process that was reading its {task.size} bytes has died, perhaps because they "
        f"need more than {limit >> 20} MiB of memory; send tensors in binary, or raise --memory-limit-requests",
        code=Code.UNAVAILABLE,
    )


def _closed_error() -> NaiadError:
    return NaiadError("cannot read the request: the server is stopping", code=Code.UNAVAILABLE)


def _log_death(pid: int, status: int) -> None:
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
    logger.warning("process %d, which reads long requests, has died (%s); the next one starts when needed", pid, how)

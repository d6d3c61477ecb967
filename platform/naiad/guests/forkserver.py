"""One fork server as the host sees it: a process that has imported modules and forks guests (`naiad_stub.forkserver`).

The guests are children of the fork server, not of the host, so the host learns about their exit in two steps. A pidfd
says *that* a guest has exited, as for any guest. REAP asks the fork server *how*: only a parent can collect an exit
status. The fork server collects it only then, so the guest's process id is not used again before the host has killed
the rest of its process group. Everything runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from array import array
from collections.abc import Callable, Sequence
from typing import IO

from naiad_stub import wire
from naiad_stub.messages import (
    FROM_FORK_SERVER,
    Fork,
    Forked,
    ForkFailed,
    ForkServerFailed,
    ForkServerReady,
    FromForkServer,
    Reap,
    Reaped,
    pack,
    unpack,
)

from naiad.core.child_processes import kill_group
from naiad.core.errors import GuestExitedError, NaiadError
from naiad.guests.compat import assert_never
from naiad.guests.launch import GuestSockets, LaunchedGuest, LaunchSpec, start_stub
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.memory.link_memory import SharedInputs
from naiad.guests.output import GuestLog, LineReader, describe_dropped
from naiad.guests.process import PROGRESS_CHECK_SECONDS, ProgressMonitor, describe_exit
from naiad.guests.sweeper import sweeper

logger = logging.getLogger("naiad.workers")

_MESSAGE = 1 << 16
_EXIT_SECONDS = 60  # after that, a fork server that has ended its connection and has not exited is killed


class CannotForkError(NaiadError):
    """The fork server cannot fork a guest; its interpreter may still be started."""


class ForkServer:
    """One fork server, and the guests that it forked and that have not been reaped."""

    def __init__(self, spec: LaunchSpec, modules: Sequence[str]) -> None:
        """Start one in the environment of *spec*; raise GuestExitedError if the interpreter cannot be executed."""
        self._spec = spec
        self._modules = ", ".join(modules)
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[str] = self._loop.create_future()  # "" once it is ready, else why it cannot fork
        self._number = 0
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._reaps: dict[int, Callable[[int, str], None]] = {}
        self.end = ""  # how it ended, once it has
        self._was_killed = False  # by a signal that this object did not send
        self._exit: int | None = None  # its pidfd, once its socket has ended
        self._exit_timer: asyncio.TimerHandle | None = None
        self._begun = self._loop.time()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments: dict[str, int | str] = {"--fork-server": theirs.fileno(), "--modules": ",".join(modules)}
        try:
            self._guest_id = sweeper.new_id()
            self._process = start_stub(spec, arguments, (theirs.fileno(),), self._guest_id)
        except GuestExitedError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._log = GuestLog(spec.log_rate, self._on_lines_dropped, self._loop)
        sweeper.watch(self._guest_id, f"prewarming {self._modules}")
        self._lines = [
            LineReader(pipe, lambda line, name=name: self._printed(name, line), self._log, self._loop)  # type: ignore[misc]  # mypy cannot infer a lambda with a default value
            for name, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
            if pipe is not None
        ]
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._readable)

    def __repr__(self) -> str:
        state = self.end or ("READY" if self.is_ready else "IMPORTING" if not self._outcome.done() else "FAILED")
        return f"<ForkServer {self._modules} {state} pid={self.pid}>"

    @property
    def is_replaceable(self) -> bool:
        """Whether another one may replace it: it ended after it was ready, or a signal killed it before.

        One whose import fails, hangs or exits is not replaced: another one would do the same.
        """
        return bool(self.end) and (self.is_ready or self._was_killed)

    @property
    def is_ready(self) -> bool:
        return self._outcome.done() and not self._outcome.result()

    async def fork(self, memory: InstanceMemory, shared: SharedInputs | None = None) -> LaunchedGuest:
        """Fork a guest, once all modules are imported; *shared* is what other processes write its inputs to."""
        problem = await self._wait_ready()
        if problem:
            raise CannotForkError(problem)
        sockets = GuestSockets()
        (out, guest_out), (err, guest_err) = os.pipe(), os.pipe()
        output: tuple[tuple[str, IO[bytes]], ...]
        output = (("stdout", os.fdopen(out, "rb", 0)), ("stderr", os.fdopen(err, "rb", 0)))
        shared_size = 0 if shared is None else shared.capacity
        try:
            with sockets as ends:
                descriptors = (*ends, memory.input_descriptor, memory.output_descriptor, guest_out, guest_err)
                if shared is not None:
                    descriptors += (shared.descriptor,)
                pid, guest_id = await self._request_fork(memory, shared_size, descriptors)
        except BaseException:
            for _, pipe in output:
                pipe.close()
            raise
        finally:
            os.close(guest_out)
            os.close(guest_err)
        return LaunchedGuest(
            pid=pid,
            output=output,
            sockets=sockets,
            guest_id=guest_id,
            reap=lambda ended: self._reap(pid, ended),
        )

    def close(self) -> None:
        self._stop("it was not needed any more")

    # -- requests -------------------------------------------------------------------------------------------------

    async def _wait_ready(self) -> str:
        progress = ProgressMonitor(self._spec.start_timeout)
        progress.start(self.pid, self._loop.time())
        while not self._outcome.done():
            await asyncio.wait([self._outcome], timeout=PROGRESS_CHECK_SECONDS)
            if not self._outcome.done() and progress.is_stalled(self._loop.time()):
                self._stop(
                    f"importing {self._modules} made no progress for {self._spec.start_timeout:g} s "
                    "(stub-timeout-seconds)"
                )
        return self._outcome.result() or self.end

    async def _request_fork(
        self, memory: InstanceMemory, shared_size: int, descriptors: Sequence[int]
    ) -> tuple[int, str]:
        self._number = number = self._number + 1
        answer: asyncio.Future[int] = self._loop.create_future()
        self._forks[number] = answer
        message = pack(Fork(number, memory.inputs.capacity, memory.output_capacity, shared_size))
        try:
            self._socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))])
        except OSError as error:
            del self._forks[number]
            raise CannotForkError(f"asking for a guest: {error.strerror or error}") from error
        guest_id = f"{self._guest_id.partition('.')[0]}.{number:06d}"
        return await answer, guest_id  # if this is cancelled, `_on_forked` kills the guest

    def _reap(self, pid: int, ended: Callable[[int, str], None]) -> None:
        self._reaps[pid] = ended
        if not self.end:
            try:
                self._socket.send(pack(Reap(pid)))
            except OSError:
                self._on_closed()
        if self.end:
            self._report_guests_killed()

    # -- messages -------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        while not self.end:
            try:
                data = self._socket.recv(_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._on_closed()
                return
            try:
                kind = wire.FRAME.unpack_from(data)[1]
                self._on_message(unpack(FROM_FORK_SERVER, kind, data[wire.FRAME.size :]))
            except Exception as error:  # a fault of the fork server, which ends only it and its guests
                logger.exception("the fork server of '%s' (pid %d) is killed", self._spec.name, self.pid)
                self._stop(f"it broke the protocol: {error}")

    def _on_message(self, message: FromForkServer) -> None:
        match message:
            case ForkServerReady():
                if self._outcome.done():
                    raise wire.WireError("it was ready before")
                seconds = self._loop.time() - self._begun
                logger.info("prewarmed %s in %.2f s: pid %d (%s)", self._modules, seconds, self.pid, self._spec.python)
                self._outcome.set_result("")
            case ForkServerFailed():
                self._stop(message.problem)
            case Forked():
                self._on_forked(message.number, message.pid)
            case ForkFailed():
                answer = self._forks.pop(message.number)
                if not answer.done():
                    answer.set_exception(CannotForkError(f"fork: {message.problem}"))
            case Reaped():
                ended = self._reaps.pop(message.pid)
                ended(-message.signal if message.signal else message.exit_code, "")
            case _:
                assert_never(message)

    def _on_forked(self, number: int, pid: int) -> None:
        import psutil  # here: most servers have no such guests

        # The host will kill this process one day, so it must really be a child of the fork server.
        if psutil.Process(pid).ppid() != self.pid:
            raise ValueError(f"process {pid} is not its child")
        answer = self._forks.pop(number)
        if answer.done():  # the caller was cancelled
            kill_group(pid)
            self._reap(pid, lambda status, reason: None)  # noqa: ARG005 - the signature of callbacks on an exit
        else:
            answer.set_result(pid)

    def _printed(self, stream: str, line: str) -> None:
        logger.info("[prewarming %s, pid %d %s] %s", self._modules, self.pid, stream, line)

    def _on_lines_dropped(self, lines: int, size: int) -> None:
        dropped = describe_dropped(lines, size, self._spec.log_rate)
        logger.warning("prewarming %s, pid %d: %s", self._modules, self.pid, dropped)

    # -- its end ------------------------------------------------------------------------------------------------

    def _on_closed(self) -> None:
        """Wait for its exit: a Python whose socket has ended takes longer for it than the loop may wait."""
        if self.end or self._exit is not None:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._exit = os.pidfd_open(self.pid)
        self._loop.add_reader(self._exit, self._stop, "")
        slow = f"the fork server ended its connection, and did not exit within {_EXIT_SECONDS} s"
        self._exit_timer = self._loop.call_later(_EXIT_SECONDS, self._stop, slow)

    def _stop(self, reason: str) -> None:
        if self.end:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._exit is not None:
            self._loop.remove_reader(self._exit)
            os.close(self._exit)
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        if reason:
            kill_group(self.pid)
        status = self._wait()
        sweeper.on_exit(self._guest_id)
        self._was_killed = not reason and status < 0
        self.end = reason or f"the fork server ended: {describe_exit(self.pid, status)}"
        for lines in self._lines:
            lines.close()
        self._log.close()
        if not self._outcome.done():
            words = "\n".join(self._lines[1].last_lines)
            self._outcome.set_result(
                self.end + (f". Its last lines on stderr:\n{words}" if words and not reason else "")
            )
        for answer in self._forks.values():
            if not answer.done():
                answer.set_exception(CannotForkError(self.end))
        self._forks.clear()
        self._report_guests_killed()

    def _wait(self) -> int:
        try:
            return self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _report_guests_killed(self) -> None:
        """Report the exit of its guests: the kernel killed them with it, and their exit status is lost."""
        reaps, self._reaps = self._reaps, {}
        for ended in reaps.values():
            ended(-signal.SIGKILL, f"the process it was forked from is gone: {self.end}")

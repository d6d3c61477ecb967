"""One guest process and its channel: start, batches in flight, death.

A worker knows nothing of models, queues or clients. It tells its *owner* what happened; the owner decides.
Everything runs on the event loop's thread. The process's end is noticed through a pidfd, not only through the end of
the stream: a child the model forked may keep the socket open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from naiad_stub import wire

from naiad.errors import GuestDiedError, ModelError, NaiadError, ProtocolError
from naiad.memory.instance import InstanceMemory
from naiad.protocol.inference import InferRequest
from naiad.workers.channel import Channel
from naiad.workers.exchange import CODES, Answer, Interface, read_responses, write_execute
from naiad.workers.launch import LaunchSpec, spawn
from naiad.workers.output import LineReader
from naiad.workers.process import cpu_seconds_of, describe_exit

logger = logging.getLogger("naiad.workers")

_PROGRESS_CHECK_SECONDS = 0.5
_EXIT_SECONDS = 1.0
"""How long a guest may live on without its channel: one that is ending should end with its own exit code."""
_WANT_RELEASE_SECONDS = 0.001
_RETURNED_LIMIT = 64
"""Output blocks waiting to be told to the guest before a message of their own tells them."""


class Owner(Protocol):
    """Who a worker reports to. Called on the event loop's thread."""

    def answered(self, worker: Worker, answer: Answer, started: int, ended: int) -> None:
        """A response (or final mark) to one request arrived; execute ran from *started* to *ended* (monotonic ns)."""

    def batch_done(self, worker: Worker, batch: Batch, started: int, ended: int) -> None:
        """`execute` of a batch returned; it ran from *started* to *ended* (monotonic ns)."""

    def died(self, worker: Worker, error: GuestDiedError) -> None:
        """The process is gone without being asked to; called once, never during `start`."""

    def said(self, worker: Worker, level: int, file: str, line: int, message: str) -> None:
        """The model logged something."""

    def printed(self, worker: Worker, stream: str, line: str) -> None:
        """The guest wrote a line to stdout or stderr."""


class Batch(NamedTuple):
    """What was sent to a guest and is not done.

    Attributes:
        keys: Keys of its requests.
        block: Their input block, -1 if there is none.
        sent: When laying out began (monotonic ns); 0 if the guest was gone before it read it.
    """

    keys: Sequence[int]
    block: int
    sent: int


class Worker:
    """One guest.

    Attributes:
        spec: What was started.
        pid: Its process id, 0 before `start`.
        python: Version of its interpreter, once it said hello.
        memory: Its segments.
        batches: What is in flight, by number, oldest first.
    """

    def __init__(self, spec: LaunchSpec, owner: Owner, interface: Interface) -> None:
        self.spec = spec
        self.pid = 0
        self.python = ""
        self.memory = InstanceMemory(spec.name)
        self.batches: dict[int, Batch] = {}
        self._owner = owner
        self._interface = interface
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._number = 0
        self._started: asyncio.Future[str] | None = None
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._last_progress = 0.0
        self._is_stopping = False
        self._last_sent = 0  # the batch that was the last message sent
        self._is_gone = False
        self._is_wanted = False  # the guest waits for room in its output segment
        self._verdict = ""  # why we killed it
        self._lines: list[LineReader] = []
        self._pidfd = -1

    def __repr__(self) -> str:
        state = "STARTING" if self._started else "STOPPING" if self._is_stopping else "READY"
        if self._exited.done():
            state = "DEAD"
        return f"<Worker '{self.spec.name}' {state} pid={self.pid} py{self.python} in-flight={len(self.batches)}>"

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Start the guest and have it load its model.

        Returns:
            What the guest answered: "" once the model is ready, or the completed configuration as JSON if LOAD
            asked for that.

        Raises:
            ModelError: If the model's code failed; with the guest's traceback.
            GuestDiedError: If the process ended or made no progress for the time the specification allows.
        """
        self._started = self._loop.create_future()
        try:
            self._process, sock = spawn(self.spec, self.memory)
        except NaiadError:
            self.memory.close()
            raise
        self.memory.drop_descriptors()
        self.pid = self._process.pid
        self._lines = [
            LineReader(pipe, lambda line, name=name: self._owner.printed(self, name, line), self._loop)  # type: ignore[misc]
            for name, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
            if pipe is not None
        ]
        self._watch_exit()
        self._channel = Channel(sock, self._loop, self._take, self._channel_ended)
        try:
            return await self._wait_started()
        except BaseException:
            await self.kill()
            raise
        finally:
            self._started = None

    async def stop(self, timeout: float) -> None:
        """Have the model finalized and wait for the process's end; kill it after *timeout* seconds (0: at once)."""
        self._is_stopping = True
        if self._channel is not None and not self._exited.done() and timeout > 0:
            self._send(wire.pack(wire.Kind.FINALIZE))
            await asyncio.wait([self._exited], timeout=timeout)
            if not self._exited.done():
                logger.warning("'%s' did not finish within %g s and is killed", self.spec.name, timeout)
        await self.kill()

    async def kill(self) -> None:
        """End the process and every process it started, now, and free what belongs to it."""
        self._is_stopping = True
        if self._process is not None:
            self._kill_group()
            await self._exited
        self._dispose()

    # -- requests -----------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[tuple[int, InferRequest]]) -> int:
        """Send a batch of keyed requests; return its number.

        Raises:
            OutOfMemoryError: If the inputs do not fit into the input segment now.
        """
        now = time.monotonic_ns()
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        if self._is_gone:  # its last answers are being read; the owner gets this back with its death
            self.batches[number] = Batch([key for key, _ in batch], -1, 0)
            return number
        data, block = write_execute(number, batch, self._interface, self.memory)
        if self.batches and self._channel is not None:
            self._channel.send_soon(data)
        else:
            self._send(data)
        self._last_sent = number
        self.batches[number] = Batch([key for key, _ in batch], block, now)
        return number

    def cancel(self, keys: Sequence[int]) -> None:
        """Tell the model that nobody waits for these requests any more."""
        self._send(wire.pack(wire.Kind.CANCEL, keys))

    def tidy(self, *, idle: bool) -> None:
        """Hand read output blocks back; when *idle*, have both sides give free pages back to the system."""
        self._tell_returned()
        if idle and not self.batches:
            self.memory.inputs.trim()
            self._send(wire.pack(wire.Kind.TRIM))

    # -- messages -----------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        self._last_sent = 0
        if self._channel is not None:
            self._channel.send(data)

    def _take(self, kind: int, payload: bytes) -> None:
        try:
            if kind == wire.Kind.RESPONSES:
                self._responses(payload)
            else:
                self._message(kind, payload)
        except (wire.WireError, ProtocolError) as error:
            self._condemn(f"it broke the protocol: {error}")
        except Exception as error:  # frames behind this one must not be lost with it
            logger.exception("cannot handle a message of '%s' (pid %d)", self.spec.name, self.pid)
            self._condemn(f"its message could not be handled: {error}")

    def _responses(self, payload: bytes) -> None:
        number, done, started, ended, answers = read_responses(payload, self._interface, self.memory)
        batch = self.batches.get(number)
        if batch is None:
            raise ProtocolError(f"an answer to batch {number}, which is not in flight")
        for answer in answers:
            if answer.key not in batch.keys:
                raise ProtocolError(f"an answer to request {answer.key}, which is not in batch {number}")
            self._owner.answered(self, answer, started, ended)
        if done:
            del self.batches[number]
            if batch.block >= 0:
                self.memory.inputs.release(batch.block)
            self._owner.batch_done(self, batch, started, ended)
        if len(self.memory.returned) > _RETURNED_LIMIT:
            self._tell_returned()

    def _tell_returned(self) -> None:
        returned = self.memory.returned
        if returned:
            self._send(wire.pack(wire.Kind.RELEASE, [returned.popleft() for _ in range(len(returned))]))

    def _message(self, kind: int, payload: bytes) -> None:
        if kind not in wire.FIELDS:
            raise ProtocolError(f"a message of unknown kind {kind}")
        fields = wire.unpack(kind, payload)
        self._last_progress = self._loop.time()
        if kind == wire.Kind.LOG:
            self._owner.said(self, *fields)
        elif kind == wire.Kind.WANT_RELEASE:
            if not self._is_wanted:
                self._is_wanted = True
                self._want_release()
        elif self._started is not None and not self._started.done():
            self._starting(kind, fields)

    def _want_release(self) -> None:
        """The guest waits for room: tell it as soon as anything comes back."""
        if self.memory.returned:
            self._is_wanted = False
            self._tell_returned()
        elif not self._exited.done():
            self._loop.call_later(_WANT_RELEASE_SECONDS, self._want_release)

    # -- start --------------------------------------------------------------------------------------------------

    def _starting(self, kind: int, fields: Sequence[object]) -> None:
        assert self._started is not None
        if kind == wire.Kind.HELLO:
            version, _, self.python, _ = fields  # type: ignore[assignment]
            if version != wire.PROTOCOL_VERSION:
                self._started.set_exception(
                    ProtocolError(
                        f"the stub {self.spec.stub} speaks protocol {version}, this server {wire.PROTOCOL_VERSION}: "
                        "remove it or copy the one of this release"
                    )
                )
                return
            self._send(wire.pack(wire.Kind.LOAD, dict(self.spec.load)))
        elif kind == wire.Kind.READY:
            self._started.set_result("")
        elif kind == wire.Kind.COMPLETED:
            self._started.set_result(str(fields[0]))
        elif kind == wire.Kind.FAILED:
            code, message, traceback_text = fields
            number = code if isinstance(code, int) and code < len(CODES) else 1
            self._started.set_exception(
                ModelError(str(message), code=CODES[number], traceback_text=str(traceback_text))
            )

    async def _wait_started(self) -> str:
        """Wait for the guest's word, for as long as it shows progress: heartbeats, or CPU time used."""
        assert self._started is not None
        self._last_progress = self._loop.time()
        cpu_seconds = 0.0
        while True:
            waited: list[asyncio.Future[Any]] = [self._started, self._exited]
            await asyncio.wait(waited, timeout=_PROGRESS_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._started.done():
                answer = self._started.result()
                # Ready and already gone: nobody would be told of that end any more. (Completing ends with an exit.)
                if answer or not self._exited.done():
                    return answer
            if self._exited.done():
                raise self._obituary("while it started")
            now = self._loop.time()
            used = cpu_seconds_of(self.pid)
            if used > cpu_seconds:
                cpu_seconds, self._last_progress = used, now
            if now - self._last_progress > self.spec.start_timeout:
                raise GuestDiedError(
                    f"Stub process '{self.spec.name}' is not healthy: it made no progress for "
                    f"{self.spec.start_timeout:g} s while it started (stub-timeout-seconds) and was killed."
                    f"{self._last_words()}",
                    last_lines=self._last_lines(),
                )

    # -- death --------------------------------------------------------------------------------------------------

    def _watch_exit(self) -> None:
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except OSError:
                pass  # a kernel or sandbox without it
            else:
                self._loop.add_reader(self._pidfd, self._reap)
                return
        threading.Thread(target=self._wait_in_thread, name="naiad-wait", daemon=True).start()

    def _wait_in_thread(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        assert self._process is not None
        self._kill_group()  # children the model left behind; first, while the zombie still keeps its number from reuse
        status = self._process.wait()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._exited.done():
            return
        self._is_gone = True
        if self._channel is not None:
            self._channel.drain()  # answers that arrived with the end still count
            if self._channel.was_cut and self._last_sent in self.batches:
                self.batches[self._last_sent] = self.batches[self._last_sent]._replace(sent=0)
        self._exited.set_result(status)
        if self._started is None and not self._is_stopping:
            error = self._obituary("")
            self._dispose()
            self._owner.died(self, error)

    def _channel_ended(self) -> None:
        """A guest without its channel is of no use; its exit, which mostly is under way, tells the owner."""
        if not self._is_stopping:  # `stop` has its own patience
            self._loop.call_later(_EXIT_SECONDS, self._condemn, "it closed its channel")

    def _condemn(self, reason: str) -> None:
        """Kill the guest for something it did."""
        if self._is_gone or self._is_stopping or self._verdict:
            return
        self._verdict = reason
        logger.error("'%s' (pid %d) is killed: %s", self.spec.name, self.pid, reason)
        self._kill_group()

    def _kill_group(self) -> None:
        if self.pid and not self._exited.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _dispose(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for lines in self._lines:
            lines.close()
        self.memory.close()

    def _obituary(self, when: str) -> GuestDiedError:
        status = self._exited.result() if self._exited.done() else None
        for lines in self._lines:
            lines.close()
        end = f"pid {self.pid} was killed: {self._verdict}" if self._verdict else describe_exit(self.pid, status)
        text = f"Stub process '{self.spec.name}' is not healthy: {end}"
        return GuestDiedError(
            f"{text}{' ' + when if when else ''}.{self._last_words()}",
            exit_status=status,
            last_lines=self._last_lines(),
        )

    def _last_lines(self) -> tuple[str, ...]:
        return tuple(self._lines[1].last_lines) if len(self._lines) > 1 else ()

    def _last_words(self) -> str:
        lines = self._last_lines()
        return "" if not lines else " Its last lines on stderr:\n" + "\n".join(lines)

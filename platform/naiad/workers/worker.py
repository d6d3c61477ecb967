"""One guest process and its channel: start, batches in flight, death.

A worker knows nothing of models, queues or clients. It tells its *owner* what happened; the owner decides. What a model
wants of the server it passes on to its *services*. Everything runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from naiad_stub import wire
from naiad_stub.messages import (
    FROM_GUEST,
    BlockedQuery,
    CancelCalls,
    CancelRequests,
    Completed,
    Credit,
    DiscardResults,
    Failed,
    Finalize,
    Finalized,
    Hello,
    Log,
    Notification,
    Progress,
    Query,
    Ready,
    ReleaseInputs,
    Reply,
    ResultsConsumed,
    Trim,
    WantRelease,
    pack,
    unpack,
)

from naiad.errors import GuestExitedError, NaiadError, ProtocolError
from naiad.memory.instance import InstanceMemory
from naiad.protocol.inference import InferResponse, Trace
from naiad.workers.calls import CallDecoder, ModelCall
from naiad.workers.channel import Channel
from naiad.workers.compat import assert_never
from naiad.workers.exchange import (
    CODES,
    ExecutingBatch,
    GuestResponse,
    KeyedRequest,
    ModelInterface,
    Responses,
    pack_released,
    read_responses,
    write_execute,
)
from naiad.workers.guest import GuestProcess
from naiad.workers.launch import LaunchSpec
from naiad.workers.loop_poller import loop_poller_of
from naiad.workers.readiness import ReadinessProbe
from naiad.workers.result_queue import ResultQueue
from naiad.workers.startup import GuestStartup

logger = logging.getLogger("naiad.workers")

_EXIT_SECONDS = 1.0
"""How long a guest may live on without its channel: one that is ending should end with its own exit code."""
_WANT_RELEASE_SECONDS = 0.001
_RETURNED_LIMIT = 64  # output blocks waiting to be told to the guest before a message of their own tells them


class WorkerOwner(Protocol):
    """Who a worker reports to. Called on the event loop's thread."""

    def on_response(self, worker: Worker, answer: GuestResponse, started: int, ended: int) -> None:
        """A response (or final mark) to one request arrived; execute ran from *started* to *ended* (monotonic ns)."""

    def trace_of(self, key: int) -> Trace | None:
        """The trace of a request that has not its last answer."""

    def is_refill_urgent(self, took_ns: int) -> bool:
        """Whether `on_batch_done` comes before the answers of a batch that took so long: it brings the next work."""

    def on_batch_done(self, worker: Worker, batch: ExecutingBatch, started: int, ended: int) -> None:
        """`execute` of a batch returned; it ran from *started* to *ended* (monotonic ns)."""

    def on_exit(self, worker: Worker, error: GuestExitedError) -> None:
        """The process is gone without being asked to; called once, never during `start`."""

    def on_log_record(self, worker: Worker, level: int, file: str, line: int, message: str) -> None:
        """The model logged something."""

    def on_output_line(self, worker: Worker, stream: str, line: str) -> None:
        """The guest wrote a line to stdout or stderr."""


class GuestServices(Protocol):
    """What a model may want of the server it runs in. Called on the event loop's thread."""

    def on_call(self, worker: Worker, call: ModelCall) -> None:
        """The model calls another; answered through `Worker.result`."""

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None:
        """The model has taken *count* more results of a call."""

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None:
        """The model cancels calls."""

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None:
        """Nobody looks at further results of these calls."""

    def on_query(self, worker: Worker, number: int, what: str, fields: Mapping[str, str]) -> None:
        """The model asks for something; answered through `Worker.reply`."""

    def on_notification(self, worker: Worker, what: str, fields: Mapping[str, str]) -> None:
        """The model tells something that needs no answer."""

    def on_worker_exit(self, worker: Worker) -> None:
        """The process has ended: whatever it held or waited for is void."""


class Worker:
    """One guest.

    Attributes:
        spec: What was started.
        python: Version of its interpreter, once it said hello.
        memory: Its segments.
        batches: What it executes or will execute, by number, oldest first.
        open: Keys of all requests that have not their last answer.
        readiness: Asks its model whether it is ready; None if that does not define `is_ready`.
    """

    def __init__(
        self, spec: LaunchSpec, owner: WorkerOwner, interface: ModelInterface, services: GuestServices
    ) -> None:
        self.spec = spec
        self.python = ""
        self.memory = InstanceMemory(spec.name)
        self.batches: dict[int, ExecutingBatch] = {}
        self.open: set[int] = set()
        self.readiness: ReadinessProbe | None = None
        self._owner = owner
        self._services = services
        self._interface = interface
        self._loop = asyncio.get_running_loop()
        self._process = GuestProcess(spec, self._loop)
        self._beat = loop_poller_of(self._loop, spec.busy_poll_us).beat
        self._channel: Channel | None = None
        self._number = 0
        self._startup: GuestStartup | None = None
        self._is_stopping = False
        self._last_sent = 0  # the batch that was the last message sent
        self._is_gone = False
        self._is_wanted = False  # the guest waits for room in its output segment
        self._calls = CallDecoder(spec.name)
        self._results = ResultQueue(self.memory, self._send)

    @property
    def is_starting(self) -> bool:
        """Whether its model is being loaded."""
        return self._startup is not None

    @property
    def pid(self) -> int:
        """Its process id, 0 before `start`."""
        return self._process.pid

    def __repr__(self) -> str:
        state = "STARTING" if self._startup else "STOPPING" if self._is_stopping else "READY"
        if self._process.exited.done():
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
            GuestExitedError: If the process ended or made no progress for the time the specification allows.
        """
        self._startup = startup = GuestStartup(self.spec, self._process, self._send)
        try:
            sock, side = await self._process.spawn(
                self.memory, lambda stream, line: self._owner.on_output_line(self, stream, line), self._gone
            )
        except BaseException:
            self.memory.close()
            raise
        self.memory.close_descriptors()
        self._channel = Channel(sock, self._loop, self._take, self._channel_ended, self._beat)
        self.readiness = ReadinessProbe(side, self.spec.name)
        try:
            answer = await startup.wait()
        except BaseException:
            await self.kill()
            raise
        finally:
            self._startup = None
        self.python, self.readiness = startup.python, self.readiness.kept_if(startup.has_is_ready)
        return answer

    async def stop(self, timeout: float) -> None:
        """Have the model finalized and wait for the process's end; kill it after *timeout* seconds (0: at once)."""
        self._is_stopping = True
        exited = self._process.exited
        if self._channel is not None and not exited.done() and timeout > 0:
            self._send(pack(Finalize()))
            await asyncio.wait([exited], timeout=timeout)
            if not exited.done():
                logger.warning("'%s' did not finish within %g s and is killed", self.spec.name, timeout)
        await self.kill()

    async def kill(self) -> None:
        """End the process and every process it started, now, and free what belongs to it."""
        self._is_stopping = True
        if self.pid:
            self._process.kill()
            await self._process.exited
        self._dispose()

    # -- requests -----------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[KeyedRequest], size: int) -> int:
        """Send a batch of keyed requests, of *size* rows together; return its number.

        Raises:
            OutOfMemoryError: If the inputs do not fit into the input segment now.
        """
        now = time.monotonic_ns()
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        if self._is_gone:  # its last answers are being read; the owner gets this back with its death
            self.batches[number] = ExecutingBatch([key for key, _, _ in batch], -1, 0, size)
            return number
        data, block = write_execute(number, batch, self._interface, self.memory)
        if self.batches and self._channel is not None:
            self._channel.send_soon(data)
        else:
            self._send(data)
        self._last_sent = number
        keys = [key for key, _, _ in batch]
        self.batches[number] = ExecutingBatch(keys, block, now, size)
        self.open.update(keys)
        return number

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        """Where the body of a request may be read to that it may be given. See `InputReservations.land`."""
        return None if self._is_gone else self.memory.reservations.reserve(size, ahead)

    def cancel(self, keys: Sequence[int]) -> None:
        """Tell the model that nobody waits for these requests any more."""
        self._send(pack(CancelRequests(list(keys))))

    def credit(self, key: int, count: int) -> None:
        """Tell the model that *count* responses to a request have left for the client."""
        self._send(pack(Credit(key, count)))

    def result(self, number: int, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        """Hand the model a response to one of its calls; kept here while its input segment is full."""
        self._results.put(number, response, final)

    def reply(self, number: int, *, error: NaiadError | None = None, text: str = "") -> None:
        """Answer a question of the model."""
        code, text = (0, text) if error is None else (CODES.index(error.code), error.message)
        self._send(pack(Reply(number, error is None, code, text)))

    def trace_of(self, key: int) -> Trace | None:
        """The trace of a request it works on."""
        return self._owner.trace_of(key) if key in self.open else None

    def query_blocked(self, number: int) -> None:
        """Ask whether only answers to its calls can let the model go on; it tells so as "standstill"."""
        self._send(pack(BlockedQuery(number)))

    def release_idle_memory(self, *, idle: bool) -> None:
        """Hand read output blocks back; when *idle*, have both sides give free pages back to the system."""
        self._send_released()
        if idle and not self.batches:
            self.memory.trim()
            self._send(pack(Trim()))

    # -- messages -----------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        self._last_sent = 0
        if self._channel is not None:
            self._channel.send(data)

    def _take(self, kind: int, payload: bytes) -> None:
        try:
            if kind == wire.Kind.RESPONSES:
                self._responses(payload)
            elif kind == wire.Kind.CALL:
                self._services.on_call(self, self._calls.read(payload, self.memory))
            else:
                self._message(kind, payload)
        except (wire.WireError, ProtocolError) as error:
            self._kill_for(f"it broke the protocol: {error}")
        except Exception as error:  # frames behind this one must not be lost with it
            logger.exception("cannot handle a message of '%s' (pid %d)", self.spec.name, self.pid)
            self._kill_for(f"its message could not be handled: {error}")

    def _responses(self, payload: bytes) -> None:
        read = read_responses(payload, self._interface, self.memory)
        if read.done and self._owner.is_refill_urgent(read.ended - read.started):
            self._end_batch(read)
            self._pass_on(read)
        else:
            self._pass_on(read)
            if read.done:
                self._end_batch(read)
        if len(self.memory.released) > _RETURNED_LIMIT:
            self._send_released()

    def _pass_on(self, read: Responses) -> None:
        for answer in read.answers:
            if answer.key not in self.open:
                continue  # two threads of the model answered at once, or after its sender was ended for it
            if answer.final or answer.again:
                self.open.discard(answer.key)
            self._owner.on_response(self, answer, read.started, read.ended)

    def _end_batch(self, read: Responses) -> None:
        batch = self.batches.pop(read.number, None)
        if batch is None:
            raise ProtocolError(f"an answer to batch {read.number}, which is not in flight")
        if batch.block >= 0:
            if read.kept:
                self._results.keep(batch.block)
            else:
                self.memory.release_input(batch.block)
        self._owner.on_batch_done(self, batch, read.started, read.ended)
        self._results.retry()

    def _send_released(self) -> None:
        if self.memory.released:
            self._send(pack_released(self.memory))

    def _message(self, kind: int, payload: bytes) -> None:
        message = unpack(FROM_GUEST, kind, payload)
        match message:
            case Log():
                self._owner.on_log_record(self, message.level, message.file, message.line, message.text)
            case WantRelease():
                if not self._is_wanted:
                    self._is_wanted = True
                    self._want_release()
            case ReleaseInputs():
                self._results.take_back(message.blocks)
            case ResultsConsumed():
                self._services.on_results_consumed(self, message.call, message.count)
            case CancelCalls():
                self._services.on_calls_cancelled(self, message.calls)
            case DiscardResults():
                self._services.on_results_discarded(self, message.calls)
            case Query():
                self._services.on_query(self, message.number, message.subject, message.fields)
            case Notification():
                self._services.on_notification(self, message.subject, message.fields)
            case Hello() | Progress() | Ready() | Completed() | Failed():
                if self._startup is not None:  # else its start was given up meanwhile
                    self._startup.on_message(message)
            case Finalized():
                pass  # its exit follows, and is what `stop` waits for
            case _:
                assert_never(message)

    def _want_release(self) -> None:
        """The guest waits for room: tell it as soon as anything comes back."""
        if self.memory.released:
            self._is_wanted = False
            self._send_released()
        elif not self._process.exited.done():
            self._loop.call_later(_WANT_RELEASE_SECONDS, self._want_release)

    # -- death --------------------------------------------------------------------------------------------------

    def _gone(self, status: int) -> None:
        self._is_gone = True
        self._results.close()
        if self._channel is not None:
            self._channel.drain()  # answers that arrived with the end still count
            if self._channel.was_cut and self._last_sent in self.batches:
                self.batches[self._last_sent] = self.batches[self._last_sent]._replace(sent=0)
        self._process.exited.set_result(status)
        self._services.on_worker_exit(self)
        if self._startup is None and not self._is_stopping:
            error = self._process.exit_report()
            self._dispose()
            self._owner.on_exit(self, error)

    def _channel_ended(self, reason: str) -> None:
        """A guest without its channel is of no use; its exit, which mostly is under way, tells the owner."""
        if not self._is_stopping:  # `stop` has its own patience
            self._loop.call_later(_EXIT_SECONDS, self._kill_for, reason)

    def _kill_for(self, reason: str) -> None:
        """Kill the guest for something it did."""
        if self._is_gone or self._is_stopping or self._process.kill_reason:
            return
        self._process.kill_reason = reason
        logger.error("'%s' (pid %d) is killed: %s", self.spec.name, self.pid, reason)
        self._process.kill()

    def _dispose(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.readiness is not None:
            self.readiness.close()
        self._process.close()
        self.memory.close()

"""One guest process and its channel: its start, the batches it executes, its end.

A worker knows nothing of models, queues or clients. It reports to two objects: its *delegate* (what happened to
requests and to the process) and its *services* (what the model asks the server for). Everything runs on the event
loop's thread.

A worker's life:

1. `start` launches the process and exchanges HELLO, LOAD and READY with it (`guests.startup`).
2. `execute` sends a batch. The guest responds with any number of RESPONSES; the last one is DONE.
3. The process ends. `stop` and `kill` end it deliberately. If it exits by itself, responses that it had sent are read
   first, then the delegate gets `on_exit`. A guest that breaks the protocol is killed, and that is its exit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from naiad_stub import wire
from naiad_stub.load_spec import NativeCode
from naiad_stub.messages import (
    FROM_GUEST,
    READABLE_GPUS,
    REQUEST_PROGRESS,
    BridgeOpened,
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
    LogLevels,
    MemoryUsage,
    Notification,
    Progress,
    Query,
    Ready,
    ReleaseInputs,
    Reply,
    ResultsConsumed,
    TakesDevice,
    Trim,
    WantRelease,
    pack,
    unpack,
)

from naiad.core import clock
from naiad.core.errors import GuestExitedError, ModelError, NaiadError, ProtocolError, unexpected_error
from naiad.core.logs import GUEST_LEVELS, logged_levels
from naiad.guests.calls import CallDecoder, ModelCall
from naiad.guests.channel import Channel
from naiad.guests.compat import assert_never
from naiad.guests.exchange import (
    CODES,
    ExecutingBatch,
    ExecutionReport,
    GuestResponse,
    KeyedRequest,
    ModelInterface,
    Responses,
    SingleResponse,
    bridge_places,
    check_sendable,
    pack_released,
    read_memory_usage,
    read_reports,
    read_responses,
    read_single,
    shared_places,
    write_execute,
    write_forwarded,
)
from naiad.guests.guest import GuestProcess
from naiad.guests.hang_watch import OBSERVED_SECONDS, STACKS_SECONDS, STALLED_SECONDS, HangWatch
from naiad.guests.launch import LaunchSpec, explain_denied_access
from naiad.guests.loop_poller import loop_poller_of
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.memory.unsent_frames import InputCopy, UnsentFrames
from naiad.guests.readiness import ReadinessProbe
from naiad.guests.result_queue import ResultQueue
from naiad.guests.startup import GuestStartup
from naiad.protocol.inference import NO_HEADERS, InferRequest, InferResponse
from naiad.protocol.metadata import MemoryUse

logger = logging.getLogger("naiad.workers")

_EXIT_SECONDS = 1.0  # how long a guest may run without its channel: one that is exiting should exit with its own code
_WANT_RELEASE_SECONDS = 0.001
_MAX_COMPARED = 64  # requests of a guest whose headers are compared for a call
_MAX_TAKERS = 4096
_MAX_GPUS = 1024
_WARN_ONCE = wire.LOG_ONCE + next(number for number, level in GUEST_LEVELS.items() if level == logging.WARNING)
_MAX_RELEASED = 64  # released output blocks that may wait for a message to go along with


class RequestDelegate(Protocol):
    """What keeps the account of a worker's requests. Called on the event loop's thread."""

    def on_response(self, worker: Worker, response: GuestResponse, started: int, ended: int) -> None:
        """A response or final mark for one request arrived; `execute` ran from *started* to *ended* (monotonic ns)."""

    def on_forwarded_response(self, worker: Worker, response: SingleResponse, batch: ExecutingBatch) -> None:
        """The only response to a forwarded request arrived, and its batch is done."""

    def request_of(self, key: int) -> InferRequest | None:
        """A request that does not have its last response."""

    def is_refill_urgent(self, took_ns: int) -> bool:
        """Whether `on_batch_done` comes before the answers of a batch that took so long: it brings the next work."""

    def on_batch_done(self, worker: Worker, batch: ExecutingBatch, started: int, ended: int) -> None:
        """`execute` of a batch returned; it ran from *started* to *ended* (monotonic ns)."""

    def on_batch_unsent(self, worker: Worker, batch: ExecutingBatch, error: Exception) -> None:
        """A batch that was to be sent cannot be: its inputs cannot be copied."""

    def is_held_back(self, worker: Worker) -> bool:
        """Whether a request of the guest waits until its client has received earlier responses."""

    def on_reports(self, reports: Sequence[ExecutionReport]) -> None:
        """A native backend reported times of its requests and batches."""

    def on_progress(self, key: int, started: int) -> None:
        """A request waits inside the model (0), or is computed since *started* (monotonic ns)."""


class LogDelegate(Protocol):
    """What logs for a worker's guest. Called on the event loop's thread."""

    def on_log_record(self, worker: Worker, level: int, file: str, line: int, message: str) -> None: ...

    def on_output_line(self, worker: Worker, stream: str, line: str) -> None: ...


class WorkerDelegate(Protocol):
    """What a worker reports to: its process' life itself, requests and log lines to objects of their own.

    Called on the event loop's thread.
    """

    @property
    def requests(self) -> RequestDelegate: ...

    @property
    def log(self) -> LogDelegate: ...

    def on_hang(self, worker: Worker) -> None:
        """The guest hangs; it is killed soon, unless it exits before."""

    def on_stall(self, worker: Worker, keys: Sequence[int], seconds: float) -> None:
        """`execute` of the requests with these keys has made no progress for so long, and nothing limits that."""

    def on_exit(self, worker: Worker, error: GuestExitedError) -> None:
        """The process exited by itself or was killed for a fault; called once, never during `start`."""


class GuestServices(Protocol):
    """What a model may ask of the server it runs in. Called on the event loop's thread."""

    def on_call(self, worker: Worker, call: ModelCall) -> None:
        """The model calls another one; the results go to `Worker.send_result`."""

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None:
        """The model consumed *count* more results of a call."""

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None: ...

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None:
        """The remaining results of these calls are discarded."""

    def is_calling(self, worker: Worker) -> bool:
        """Whether the model waits for results of calls."""

    def on_query(self, worker: Worker, number: int, what: str, fields: Mapping[str, str]) -> None:
        """The model asks for something; the answer goes to `Worker.reply`."""

    def on_notification(self, worker: Worker, what: str, fields: Mapping[str, str]) -> None:
        """The model reports something that has no reply."""

    def on_worker_exit(self, worker: Worker) -> None:
        """The process ended: its calls and queries have no receiver any more."""


class Worker:
    """One guest."""

    def __init__(
        self, spec: LaunchSpec, delegate: WorkerDelegate, interface: ModelInterface, services: GuestServices
    ) -> None:
        self.spec = spec
        self.python = ""
        self.memory = InstanceMemory(spec.name, shared=spec.link_memory)
        # In the order in which the guest executes them; a batch is removed before the delegate gets `on_batch_done`.
        self.batches: dict[int, ExecutingBatch] = {}  # the batches it executes or has queued, by number, oldest first
        # A key is removed before the delegate gets the request's last response. It may outlive its batch: a decoupled
        # model responds also after `execute`.
        self.open: set[int] = set()  # keys of all requests that do not have their last response
        self.forwarded: set[int] = set()  # a subset of `open` while the process lives
        # Asks the model whether it is ready; None if the model does not define `is_ready`.
        self.readiness: ReadinessProbe | None = None
        # What the guest reports: memory of a native backend, or kept for tensors in GPU memory.
        self.memory_usage: tuple[MemoryUse, ...] = ()
        # UUIDs of the GPUs whose memory the guest can use; None until it has told.
        self.gpus: frozenset[bytes] | None = None
        self.stalled_seconds = 0.0  # for how long `execute` has made no progress; 0 below a minute
        # When the batch before the one whose responses are passed on ended (monotonic ns); 0 before that.
        self.free_since = 0
        code = spec.load.code
        self._log_levels = code.log_levels if isinstance(code, NativeCode) else None  # what the guest knows of the log
        self._delegate = delegate
        self._requests = delegate.requests
        self._log = delegate.log
        self._services = services
        self._interface = interface
        self._loop = asyncio.get_running_loop()
        self._process = GuestProcess(spec, self._loop)
        self._on_activity = loop_poller_of(self._loop, spec.busy_poll_us).on_activity
        self._channel: Channel | None = None  # None before `start`, and from `_dispose` on
        self._unsent = UnsentFrames(self._loop, self._send_copied, self._on_copy_failed)
        self._waiting = self._unsent.waiting
        # Of the batch that is being written, if they are not made at once; empty outside of `execute`.
        self._copies: list[InputCopy] = []
        self._number = 0  # of the latest batch: numbers rise, so that a late response cannot meet another batch
        self._startup: GuestStartup | None = None
        self._is_stopping = False
        self._last_sent = 0  # the batch whose EXECUTE was the last message sent; 0 if that was another message
        self._is_gone = False  # whether the process has exited: from then on batches are only noted, never sent
        self._watch = HangWatch(spec.hang_seconds)
        self._stalled_batch = 0  # the last one that was reported; 0 for none
        self._queries = 0  # that have no reply yet
        self._wants_release = False  # the guest waits for a free block of its output segment
        self._calls = CallDecoder(spec.name)
        self._takers: dict[tuple[str, int], str] = {}  # what the guest was told by TAKES_DEVICE
        self._results = ResultQueue(self.memory, self._send, self._on_result_failed)

    @property
    def is_starting(self) -> bool:
        return self._startup is not None

    @property
    def is_hung(self) -> bool:
        return self._watch.is_hung

    @property
    def pid(self) -> int:
        return self._process.pid

    def __repr__(self) -> str:
        state = "STARTING" if self._startup else "STOPPING" if self._is_stopping else "READY"
        if self._process.exited.done():
            state = "DEAD"
        return f"<Worker '{self.spec.name}' {state} pid={self.pid} py{self.python} in-flight={len(self.batches)}>"

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Start the guest and have it load its model; "", or the completed configuration as JSON if LOAD asks for it.

        ModelError, with the guest's traceback, if the model's code failed; GuestExitedError if the process exited, or
        made no progress for the time that *spec* allows.
        """
        self._startup = startup = GuestStartup(self.spec, self._process, self._send)
        try:
            sockets = await self._process.spawn(
                self.memory,
                lambda stream, line: self._log.on_output_line(self, stream, line),
                self._on_process_exit,
            )
        except BaseException:
            await self.kill()
            raise
        self.memory.close_descriptors()
        on_frame = self._on_watched_frame if self._watch.seconds else self._on_frame
        self._channel = Channel(sockets.channel, self._loop, on_frame, self._on_channel_end, self._on_activity)
        self.readiness = ReadinessProbe(sockets.side, self.spec.name)
        # With a limit on its address space, bridges would take what the model may use.
        load = 0 if self.spec.memory_limit else self._interface.plan.generation
        self.memory.bridges.start(load, sockets.bridges, self._send)
        try:
            config = await startup.wait()
        except (ModelError, GuestExitedError) as error:
            error.message += explain_denied_access(self.spec)
            await self.kill()
            raise
        except BaseException:
            await self.kill()
            raise
        finally:
            self._startup = None
        self.python, self.readiness = startup.python, self.readiness.keep_if(startup.has_is_ready)
        return config

    def watch(self) -> None:
        """From now on restart the guest if it hangs, if its specification limits that: the model is warmed up."""
        if self._watch.seconds:
            self._loop.call_later(self._watch.check_seconds, self._check_progress)

    async def stop(self, timeout: float) -> None:
        """Finalize the model and wait until the process exits; kill it after *timeout* seconds (0: at once)."""
        self._is_stopping = True
        exited = self._process.exited
        if self._channel is not None and not exited.done() and timeout > 0:
            self._send(pack(Finalize()))
            await asyncio.wait([exited], timeout=timeout)
            if not exited.done():
                logger.warning("'%s' did not finish within %g s and is killed", self.spec.name, timeout)
        await self.kill()

    async def kill(self) -> None:
        self._is_stopping = True
        if self.pid:
            self._process.kill()
            await self._process.exited
        self._dispose()

    # -- requests -----------------------------------------------------------------------------------------------

    def execute(self, batch: Sequence[KeyedRequest], size: int) -> int:
        """Send a batch of keyed requests, which have *size* rows together; its number.

        OutOfMemoryError if the inputs do not fit into the free part of the input segment; any error if a request cannot
        be packed (see `check_sendable`): nothing was sent then.
        """
        now = clock.monotonic_ns()
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        keys = [key for key, _, _ in batch]
        if self._is_gone:  # its last responses are being read; the delegate gets this batch back with `on_exit`
            self.batches[number] = ExecutingBatch(keys, -1, 0, size)
            self.open.update(keys)
            return number
        shared = self.spec.inputs
        places = () if shared is None else shared_places(batch, shared)
        if self.memory.bridges.load:
            places = bridge_places(batch, places, self._interface, self.memory)
        try:
            data, block = write_execute(number, batch, self._interface, self.memory, places, self._copies)
        except BaseException:
            self._copies.clear()
            raise
        if self._copies or self._waiting:
            copies, self._copies = self._copies, []
            try:
                self._unsent.put(data, number, copies)
            except BaseException:
                self._release_block(block)
                raise
        else:
            if self.batches and self._channel is not None:
                self._channel.send_soon(data)
            else:
                self._send(data)
            self._last_sent = number
        self.batches[number] = ExecutingBatch(keys, block, now, size, places)
        self.open.update(keys)
        return number

    def forward(
        self, key: int, request_id: bytes, layout: bytes, inputs: bytes, size: int, now: int, context: bytes = b""
    ) -> None:
        """Send a batch of one request with small inputs, which begin at the offsets of its packed *layout*.

        *now* is in monotonic ns; *context* is what requests that it causes carry on, as JSON. If it cannot be packed,
        this raises, and nothing was sent.
        """
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        if self._is_gone:  # as in `execute`
            self.open.add(key)
            self.batches[number] = ExecutingBatch((key,), -1, 0, size)
            return
        data = write_forwarded(number, key, request_id, layout, inputs, context, self.memory)
        if self._waiting:
            self._unsent.put(data, number)
        else:
            if self.batches and self._channel is not None:
                self._channel.send_soon(data)
            else:
                self._send(data)
            self._last_sent = number
        self.open.add(key)
        self.batches[number] = ExecutingBatch((key,), -1, now, size)
        self.forwarded.add(key)

    def check_sendable(self, keyed: KeyedRequest) -> None:
        check_sendable(keyed, self._interface, self.memory)

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        return None if self._is_gone else self.memory.reservations.reserve(size, ahead)

    def cancel(self, keys: Sequence[int]) -> None:
        self._send(pack(CancelRequests(list(keys))))

    def credit(self, key: int, count: int) -> None:
        self._send(pack(Credit(key, count)))

    def send_result(self, number: int, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - as `Sink.send`
        """Send a response to one of the model's calls; it is queued while the input segment is full."""
        self._results.put(number, response, final)

    def tell_device_use(self, name: str, version: int, gpus: frozenset[bytes] | None, *, takes: bool) -> None:
        """Tell the guest whether a model that it calls takes inputs in GPU memory, of which *gpus*, unless it knows."""
        takes = takes and (gpus is None or bool(gpus))
        told = ("*" if gpus is None else " ".join(sorted(uuid.hex() for uuid in gpus))) if takes else ""
        if self._takers.get((name, version), "") != told:
            if len(self._takers) >= _MAX_TAKERS:
                self._takers.clear()
            self._takers[name, version] = told
            self._send(pack(TakesDevice(name, [version], takes, told)))

    def reply(self, number: int, *, error: NaiadError | None = None, text: str = "") -> None:
        self._queries -= 1
        try:
            code, text = (0, text) if error is None else (CODES.index(error.code), error.message)
            data = pack(Reply(number, error is None, code, text))
        except Exception as problem:  # a thread of the model waits for the reply
            logger.exception("cannot pack the reply to a query of '%s'", self.spec.name)
            failure = unexpected_error("reply to a query of a model", problem)
            data = pack(Reply(number, False, CODES.index(failure.code), failure.message))
        self._send(data)

    def request_of(self, key: int) -> InferRequest | None:
        return self._requests.request_of(key) if key in self.open else None

    def propagated(self) -> Mapping[str, str]:
        """The headers that all open requests have in common, for a call whose own request is unknown."""
        if len(self.open) > _MAX_COMPARED:
            return NO_HEADERS
        shared: Mapping[str, str] | None = None
        for key in self.open:
            request = self._requests.request_of(key)
            if request is None:
                continue
            if shared is not None and request.propagated != shared:
                return NO_HEADERS
            shared = request.propagated
        return shared or NO_HEADERS

    def release_idle_memory(self, *, idle: bool) -> bool:
        """Release output blocks that were read; if *idle*, free pages of both sides. Whether blocks were released."""
        has_released = bool(self.memory.released)
        self._send_released()
        if idle and not self.batches:
            self._send(pack(Trim()))
            self._trim()
        return has_released

    def _trim(self) -> None:
        """Free pages of the input segment, in slices; the rest in the next pause if there is work meanwhile."""
        if not self.batches and self._channel is not None and self.memory.trim():
            self._loop.call_soon(self._trim)

    def follow_log_level(self) -> None:
        """Tell a native backend, which may ask for it, which levels are logged, if that has changed."""
        if self._log_levels is not None and self._log_levels != (levels := logged_levels()):
            self._log_levels = levels
            self._send(pack(LogLevels(levels)))

    # -- messages -----------------------------------------------------------------------------------------------

    def _send_copied(self, data: bytes, number: int) -> None:
        self._last_sent = number
        if self._channel is not None:
            self._channel.send(data)

    def _on_copy_failed(self, number: int, error: Exception) -> None:
        batch = self.batches.pop(number)
        self.open.difference_update(batch.keys)
        self._release_block(batch.block)
        self._requests.on_batch_unsent(self, batch, error)

    def _on_result_failed(self, number: int) -> None:
        self._services.on_calls_cancelled(self, [number])
        self._services.on_results_discarded(self, [number])

    def _release_block(self, block: int) -> None:
        if block >= 0:
            self.memory.release_input(block)

    def _send(self, data: bytes) -> None:
        if self._waiting:
            self._unsent.put(data)
            return
        self._last_sent = 0
        if self._channel is not None:
            self._channel.send(data)

    def _on_frame(self, kind: int, payload: bytes) -> None:
        try:
            if kind == wire.Kind.RESPONSES:
                self._responses(payload)
            elif kind == wire.Kind.REPORTS:
                self._requests.on_reports(read_reports(payload))
            elif kind == wire.Kind.CALL:
                self._services.on_call(self, self._calls.read(payload, self.memory))
            else:
                self._message(kind, payload)
        except (wire.WireError, ProtocolError) as error:
            self._kill_for(f"it broke the protocol: {error}")
        except Exception as error:  # the frames after this one must still be handled
            logger.exception("cannot handle a message of '%s' (pid %d)", self.spec.name, self.pid)
            self._kill_for(f"its message could not be handled: {error}")

    def _responses(self, payload: bytes) -> None:
        single = read_single(payload, self._interface)
        if single is not None and self._pass_on_single(single):
            return
        read = read_responses(payload, self._interface, self.memory)
        if self._interface.notices:
            for notice in self._interface.take_notices():
                self._log.on_log_record(self, _WARN_ONCE, "model.py", 0, notice)
        if read.reports:
            self._requests.on_reports(read.reports)
        if read.done and self._requests.is_refill_urgent(read.ended - read.started):
            self._end_batch(read)
            self._pass_on(read)
        else:
            self._pass_on(read)
            if read.done:
                self._end_batch(read)
        if read.done:
            self.free_since = read.ended
        if len(self.memory.released) > _MAX_RELEASED:
            self._send_released()

    def _pass_on_single(self, response: SingleResponse) -> bool:
        """Pass on the one response to a batch of one request; False if it has to be handled like any other."""
        key = response.key
        batch = self.batches.get(response.number)
        if batch is None or len(batch.keys) != 1 or batch.keys[0] != key or key not in self.open:
            return False
        if self._requests.is_refill_urgent(response.ended - response.started):
            return False
        if response.reports:
            self._requests.on_reports(read_reports(response.reports))
        self.open.discard(key)
        if key in self.forwarded:
            self.forwarded.discard(key)
            del self.batches[response.number]
            self._requests.on_forwarded_response(self, response, batch)
        else:
            self._requests.on_response(self, response.as_any(self._interface), response.started, response.ended)
            # The sink may have ended the guest, and its batches with it.
            if self.batches.pop(response.number, None) is None:
                return True
            if batch.block >= 0:
                self.memory.release_input(batch.block)
            self._requests.on_batch_done(self, batch, response.started, response.ended)
        self.free_since = response.ended
        self._results.retry()
        return True

    def _pass_on(self, read: Responses) -> None:
        for response in read.responses:
            if response.key not in self.open:
                continue  # two threads of the model responded at once, or after the sender had been ended for it
            if response.final or response.reschedule:
                self.open.discard(response.key)
                self.forwarded.discard(response.key)
            self._requests.on_response(self, response, read.started, read.ended)

    def _end_batch(self, read: Responses) -> None:
        batch = self.batches.pop(read.number, None)
        if batch is None:
            raise ProtocolError(f"a response to batch {read.number}, which is not in flight")
        if read.kept_shared:
            self._results.keep_shared(-1 - read.number, batch.places)
        if batch.block >= 0:
            if read.kept:
                self._results.keep(batch.block)
            else:
                self.memory.release_input(batch.block)
        self._requests.on_batch_done(self, batch, read.started, read.ended)
        self._results.retry()

    def _send_released(self) -> None:
        if self.memory.released or self.memory.regions.importer.ended:
            self._send(pack_released(self.memory))

    def _message(self, kind: int, payload: bytes) -> None:
        message = unpack(FROM_GUEST, kind, payload)
        match message:
            case Log():
                fields = (message.level, message.file, message.line, message.text)
                self._process.log.put(len(message.text), self._log.on_log_record, self, *fields)
            case WantRelease():
                if not self._wants_release:
                    self._wants_release = True
                    self._want_release()
            case ReleaseInputs():
                self._results.release(message.blocks)
            case ResultsConsumed():
                self._services.on_results_consumed(self, message.call, message.count)
            case CancelCalls():
                self._services.on_calls_cancelled(self, message.calls)
            case DiscardResults():
                self._services.on_results_discarded(self, message.calls)
            case Query():
                self._queries += 1
                self._services.on_query(self, message.number, message.subject, message.fields)
            case Notification() if message.subject == REQUEST_PROGRESS:
                self._on_progress(message.fields)
            case Notification() if message.subject == READABLE_GPUS:
                self.gpus = _read_gpus(message.fields)
            case Notification():
                self._services.on_notification(self, message.subject, message.fields)
            case BridgeOpened():
                self.memory.bridges.on_opened(message.number)
            case MemoryUsage():
                self.memory_usage = read_memory_usage(message.usage)
            case Hello() | Progress() | Ready() | Completed() | Failed():
                if self._startup is not None:  # else its start was given up meanwhile
                    self._startup.on_message(message)
            case Finalized():
                pass  # its exit follows, and is what `stop` waits for
            case _:
                assert_never(message)

    def _on_progress(self, fields: Mapping[str, str]) -> None:
        try:
            key, started = int(fields["key"]), int(fields["started"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"a malformed notification of progress: {error!r}") from error
        if key in self.open:
            self._requests.on_progress(key, started)

    def _want_release(self) -> None:
        """Send released blocks as soon as there are any: the guest waits for them."""
        if self.memory.released:
            self._wants_release = False
            self._send_released()
        elif not self._process.exited.done():
            self._loop.call_later(_WANT_RELEASE_SECONDS, self._want_release)

    # -- its progress -------------------------------------------------------------------------------------------

    def _on_watched_frame(self, kind: int, payload: bytes) -> None:
        if kind in {wire.Kind.RESPONSES, wire.Kind.CALL}:
            self._watch.record(clock.monotonic())
        self._on_frame(kind, payload)

    def look_at_progress(self) -> None:
        """Note for how long `execute` has made no progress, and report it once a batch; called periodically."""
        if self._is_gone or self._is_stopping or not self.batches or self.spec.at_terminal:
            self.stalled_seconds = 0.0
            return
        now = clock.monotonic()
        if self._waits_for_others():
            self._watch.record(now)
        number, batch = next(iter(self.batches.items()))
        seconds = self._watch.since_progress(now, batch.sent / 1e9)
        if seconds >= OBSERVED_SECONDS and self._channel is not None:
            self._channel.on_frame = self._on_watched_frame
        self.stalled_seconds = seconds if seconds >= STALLED_SECONDS else 0.0
        if self.stalled_seconds and not self._watch.seconds and number != self._stalled_batch:
            self._stalled_batch = number
            self._delegate.on_stall(self, tuple(batch.keys), seconds)

    def _check_progress(self) -> None:
        if self._is_gone or self._is_stopping:
            return
        now = clock.monotonic()
        if self._waits_for_others():
            self._watch.record(now)
        # The guest executes the oldest batch; 0 if it executes none.
        elif self.open and self._watch.check(now, next((batch.sent / 1e9 for batch in self.batches.values()), 0.0)):
            self._on_hang()
            return
        self._loop.call_later(self._watch.check_seconds, self._check_progress)

    def _waits_for_others(self) -> bool:
        """Whether the guest waits for a reply, or for memory that responses in flight borrow, or for a client."""
        return (
            self._queries > 0
            or self._wants_release
            or self._services.is_calling(self)
            or self._requests.is_held_back(self)
        )

    def _on_hang(self) -> None:
        """Have the guest write its stacks, then kill it."""
        reason = f"it made no progress for {self._watch.seconds:g} s (--stub-hang-seconds or HANG_SECONDS)"
        logger.error("'%s' (pid %d) hangs: %s; its stacks follow", self.spec.name, self.pid, reason)
        self._process.send_signal(wire.STACKS_SIGNAL)
        self._loop.call_later(STACKS_SECONDS, self._kill_for, reason)
        self._delegate.on_hang(self)

    # -- its end --------------------------------------------------------------------------------------------------

    def _on_process_exit(self, status: int) -> None:
        self._is_gone = True
        for number in self._unsent.batches:
            self.batches[number] = self.batches[number]._replace(sent=0)
        self._unsent.clear()
        self._results.close()
        if self._channel is None:
            self._on_drained(status)
        else:
            self._channel.drain(lambda: self._on_drained(status))  # responses that were sent before the end still count

    def _on_drained(self, status: int) -> None:
        """The process has exited, and its last messages were handled."""
        # The guest never read the batch that was sent last: the delegate may give it to another guest.
        if self._channel is not None and self._channel.was_cut and self._last_sent in self.batches:
            self.batches[self._last_sent] = self.batches[self._last_sent]._replace(sent=0)
        self._process.exited.set_result(status)
        self._services.on_worker_exit(self)
        if self._startup is None and not self._is_stopping:
            error = self._process.exit_report()
            error.label = "hang" if self._watch.is_hung else ""
            self._dispose()
            self._delegate.on_exit(self, error)

    def _on_channel_end(self, reason: str) -> None:
        """Kill a guest without its channel, unless it exits by itself first, with its own exit code."""
        if self._channel is not None and self._channel.is_broken:
            self._kill_for(reason)
        elif not self._is_stopping:  # `stop` has its own timeout
            self._loop.call_later(_EXIT_SECONDS, self._kill_for, reason)

    def _kill_for(self, reason: str) -> None:
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
        self._unsent.clear()
        self.memory.close()


def _read_gpus(fields: Mapping[str, str]) -> frozenset[bytes]:
    try:
        gpus = [bytes.fromhex(text) for text in fields["uuids"].split()]
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a malformed notification of GPUs: {error!r}") from error
    if len(gpus) > _MAX_GPUS or any(len(uuid) != wire.GPU_UUID_SIZE for uuid in gpus):
        raise ProtocolError(f"a malformed notification of {len(gpus)} GPUs")
    return frozenset(gpus)

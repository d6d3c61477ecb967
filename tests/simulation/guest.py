"""A simulated guest: it speaks the real frames, does what requests say, and starts and ends as its model says.

It answers each request with the request's number and the number of the response, so that a client sees whose response it
has. It reports what no guest may see: a cancellation before its request, a block released twice, a malformed message.
"""

from __future__ import annotations

import contextvars
import random
import struct
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol

from naiad_stub import layout as layouts
from naiad_stub import wire
from naiad_stub.messages import (
    CancelRequests,
    Credit,
    Failed,
    Finalize,
    Finalized,
    Hello,
    Message,
    Ready,
    ReleaseInputs,
    ReleaseOutputs,
    ResultsConsumed,
    WantRelease,
    pack,
    unpack,
)
from naiad_stub.segment import block_size
from simulation.histories import BATCHING, DECOUPLED, SEQUENCES, Request, kind_of
from simulation.world import SimulatedSocket, World

from naiad.guests.launch import LaunchSpec
from naiad.guests.memory.instance import InstanceMemory
from naiad.protocol.datatypes import Datatype

_TO_GUEST = {each.kind: each for each in (ReleaseOutputs, CancelRequests, Finalize, Credit)}
_WINDOW = 4
"""Responses that a guest sends ahead of its client."""
_NARROW = 2
"""Blocks in use from which a guest whose memory is narrow waits for others to be released."""
_CANCELLED_SECONDS = 0.08
"""So long after a guest has exited, its calls have been cancelled."""
_INT64 = int(Datatype.INT64)
INNER = 1 << 40
"""Added to the number of a request by the calls that it causes."""


class Run(Protocol):
    """What a guest needs of the history that runs."""

    world: World

    def request_of(self, tag: int) -> Request | None:
        """The request with that content."""

    def on_executed(self, tag: int, guest: SimulatedGuest) -> None:
        """A guest has read a request."""

    def on_caller_exited(self, guest: SimulatedGuest) -> None:
        """A guest exited some time ago, and had calls under way."""

    def fail(self, what: str, *details: object) -> None:
        """Something must not happen, and has."""


class _Row:
    """One request of a batch."""

    def __init__(self, key: int, tag: int, size: int, state: int, request: Request | None) -> None:
        self.key, self.tag, self.size, self.state = key, tag, size, state
        if request is not None and request.is_short:
            self.size = 16
        self.request = request or Request(model="", takes=1e-3)
        self.how = self.request.how
        self.calls_open = 0
        self.sent = 0


class _Batch:
    def __init__(self, number: int, rows: list[_Row]) -> None:
        self.number, self.rows, self.started = number, rows, 0


class SimulatedGuest:
    """One guest.

    Args:
        how: How it starts and ends: "ok", "fails" (`initialize` raises), "dies", "dies at once" (after READY), "hangs",
            "dies in warm-up", "fails in warm-up", "hangs in finalize", "dies in finalize".

    Attributes:
        status: Its exit status, once it has exited.
        exited_ns: When it exited.
        blocks: The blocks of its output segment that the host has not released, with their sizes.
        owner: The process of the server that has started it; None for the coordinator.
        memory: What it shares with that.
    """

    def __init__(
        self,
        pid: int,
        spec: LaunchSpec,
        memory: InstanceMemory,
        socket: SimulatedSocket,
        run: Run,
        how: str,
        *,
        narrow: bool,
    ) -> None:
        self.pid, self.name, self.model = pid, spec.name, spec.load.model_name
        self.status: int | None = None
        self.exited_ns = 0
        self.blocks: dict[int, int] = {}
        self.side: SimulatedSocket
        self.owner: object = None
        self._shared: Any = spec.inputs
        self.memory = memory
        self._inputs, self._outputs, self._socket, self._run, self._how = (
            memory.inputs.view,
            memory.outputs,
            socket,
            run,
            how,
        )
        self._world = run.world
        self._rng = random.Random(f"{pid} {run.world.rng.random()}")
        self._kind = kind_of(self.model)
        self._input_names, self._output_names = list(spec.load.inputs), [*spec.load.outputs, *spec.load.states]
        self._rescheduled: set[int] = set()
        self._most_blocks = _NARROW if narrow else 1 << 30
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._end_of_blocks = 0
        self._waiting_for_memory: list[Callable[[], None]] = []
        self._on_exit: Callable[[], None] | None = None
        self._reader = wire.FrameReader()
        self._outgoing = bytearray()
        self._batches: deque[_Batch] = deque()
        self._current: _Batch | None = None
        self._cancelled: set[int] = set()
        self._seen: set[int] = set()
        self._credit: defaultdict[int, int] = defaultdict(int)
        self._held: dict[int, Callable[[], None]] = {}  # streams that wait for credit
        self._calls: dict[int, tuple[_Batch, _Row]] = {}
        self._results: dict[int, int] = {}  # how many each call has
        self._call_count = 0
        self._moment("start")
        socket.on_readable = self._readable
        self._later(
            self._rng.choice((1e-4, 5e-3)), self._send, pack(Hello(wire.PROTOCOL_VERSION, pid, "3.11.0", "2.0"))
        )

    # -- its process --------------------------------------------------------------------------------------------

    def _moment(self, what: str, *details: object) -> None:
        self._world.note(what, self.name, *details)
        self._world.on_moment(what, self.model)

    def _later(self, seconds: float, function: Callable[..., None], *args: object) -> None:
        def call() -> None:
            if self.status is None:
                function(*args)

        self._world.later(seconds, call)

    def watch(self, on_exit: Callable[[], None]) -> None:
        """Call *on_exit* when the process has exited."""
        self._on_exit, self._watcher = on_exit, contextvars.copy_context()
        if self.status is not None:
            self._world.loop.call_soon(on_exit)

    def exit(self, status: int) -> None:
        """Exit. The host sees the last bytes, the end of the socket, and the exit, in any order."""
        if self.status is not None:
            return
        self.status, self.exited_ns = status, self._world.now_ns
        self._moment("exit", status)
        self._socket.end()
        self.side.end()
        if self._calls:
            self._world.later(_CANCELLED_SECONDS, self._run.on_caller_exited, self)
        if self._on_exit is not None:
            delay = self._rng.choice((0, 1e-5, 1e-3, 0.02))
            self._world.loop.call_later(delay, self._on_exit, context=self._watcher)

    # -- messages -----------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        self._outgoing += data
        self._flush()

    def _flush(self) -> None:
        if not self._outgoing or self.status is not None:
            return
        try:
            sent = self._socket.send(self._outgoing)
        except BlockingIOError:
            self._later(1e-3, self._flush)
            return
        except OSError:
            self._later(0, self.exit, 1)
            return
        del self._outgoing[:sent]
        if self._outgoing:
            self._later(1e-3, self._flush)

    def _readable(self) -> None:
        if self.status is not None:
            return
        for kind, payload in self._reader.feed(self._socket.take()):
            if self.status is None:
                self._on_frame(kind, payload)
        if self._socket.is_ended:
            self._later(0, self.exit, 1)

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == wire.Kind.EXECUTE:
            self._batches.append(self._read_execute(payload))
            self._next()
        elif kind == wire.Kind.RESULT:
            self._on_result(payload)
        elif kind == wire.Kind.LOAD:
            self._load()
        elif kind in _TO_GUEST:
            self._on_message(unpack(_TO_GUEST, kind, payload))

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Finalize):
            self._finalize()
        elif isinstance(message, CancelRequests):
            self._cancelled.update(message.keys)
            if not self._seen.issuperset(message.keys):
                self._run.fail("a cancellation comes before its request", self.name)
        elif isinstance(message, Credit):
            self._credit[message.key] += message.count
            if message.key in self._held:
                self._held.pop(message.key)()
        elif isinstance(message, ReleaseOutputs):
            for block in message.blocks:
                if block not in self.blocks:
                    self._run.fail("a block is released twice", self.name)
                    continue
                self._free[self.blocks.pop(block)].append(block)
            waiting, self._waiting_for_memory = self._waiting_for_memory, []
            for each in waiting:
                each()

    def _load(self) -> None:
        how, delay = self._how, self._rng.choice((1e-3, 0.02, 0.2))
        self._moment("load", how)
        if how == "fails":
            self._later(delay, self._send, pack(Failed(1, "the model's initialize failed", "")))
            self._later(delay + 0.01, self.exit, 1)
        elif how == "dies":
            self._later(delay, self.exit, -11)
        elif how != "hangs":
            self._later(delay, self._ready)

    def _ready(self) -> None:
        self._send(pack(Ready(True, False)))
        self._moment("ready")
        if self._how == "dies at once":
            self._later(self._rng.choice((0, 1e-4, 0.1)), self.exit, -11)

    def _finalize(self) -> None:
        if self._current is not None or self._batches:
            self._later(0.01, self._finalize)
            return
        self._moment("finalize")
        if self._how == "hangs in finalize":
            return
        if self._how == "dies in finalize":
            self._later(1e-3, self.exit, -11)
            return
        self._send(pack(Finalized()))
        self._later(self._rng.choice((0, 1e-3, 0.05)), self.exit, 0)

    # -- execute ------------------------------------------------------------------------------------------------

    def _read_execute(self, payload: bytes) -> _Batch:
        number, count, block = wire.EXECUTE_HEAD.unpack_from(payload)
        position = wire.EXECUTE_HEAD.size
        source = memoryview(payload)[position:] if block < 0 else self._inputs
        position += -1 - block if block < 0 else 0
        rows = []
        for _ in range(count):
            key, _, _, flags, base, ids, correlation, parameters, size = wire.REQUEST_HEAD.unpack_from(
                payload, position
            )
            position += (
                wire.REQUEST_HEAD.size + ids + (0 if correlation == wire.NO_STRING else correlation) + parameters
            )
            if flags & wire.TRACED:
                position += wire.TRACE_SIZE.size + wire.TRACE_SIZE.unpack_from(payload, position)[0]
            where = source
            if flags & wire.SHARED_INPUTS:  # another process of the server has written them
                where, base = self._shared.view, base & ((1 << wire.BRIDGE_SHIFT) - 1)
            values, length = {}, 8
            for place in layouts.unpack(payload[position : position + size])[0]:
                name = self._input_names[place.position]
                if name in {"IN", "SUM_IN"} and place.size >= 8:
                    (values[name],) = struct.unpack_from("<q", where, base + place.offset)
                    length = place.size if name == "IN" else length
            position += size
            tag = values.get("IN", 0)
            rows.append(_Row(key, tag, length, values.get("SUM_IN", 0), self._run.request_of(tag)))
            self._seen.add(key)
        if position != len(payload):
            self._run.fail("EXECUTE does not end where it should", self.name)
        if self._batches or self._current is not None:
            for row in rows:
                if (
                    row.tag >= INNER and row.request.target == self.model
                ):  # of calls that go to it directly, and not by an ensemble
                    self._run.fail("a call is sent to a busy instance", self.name, row.tag - INNER)
        self._moment("execute", tuple(row.tag for row in rows))
        for row in rows:
            self._run.on_executed(row.tag, self)
        return _Batch(number, rows)

    def _next(self) -> None:
        if self._current is not None or not self._batches:
            return
        self._current = batch = self._batches.popleft()
        batch.started = self._world.now_ns
        hows = {row.how for row in batch.rows}
        takes = max(row.request.takes for row in batch.rows)
        if not any(row.tag for row in batch.rows):
            if self._how == "dies in warm-up":
                hows.add("dies before")
            elif self._how == "fails in warm-up":
                for row in batch.rows:
                    row.how = "error"
        if "hang" in hows:
            return
        if "dies before" in hows:
            self._later(takes, self.exit, -11)
        else:
            self._later(takes, self._executed, batch)

    def _executed(self, batch: _Batch) -> None:
        """`execute` returns, or waits for its calls."""
        hows = {row.how for row in batch.rows}
        if "garbage" in hows:
            self._send(b"\xff" * 64)
            return
        callers = [row for row in batch.rows if row.how == "call" and row.tag and row.key not in self._cancelled]
        late = [row for row in batch.rows if self._kind in DECOUPLED and row.how != "error"]
        entries: list[bytes] = []
        rows = [row for row in batch.rows if row not in callers and row not in late]

        def respond() -> None:
            """Make the responses, one row after another, as far as there is memory."""
            while rows:
                entry = self._entry(rows[0], final=True)
                if entry is None:
                    self._wait_for_memory(respond)
                    return
                entries.append(entry)
                row = rows.pop(0)
                if row.how == "two ends" and (again := self._entry(row, final=True)):
                    entries.append(again)
            if callers:  # blocking calls: `execute` returns when they have ended
                if entries:
                    self._frame(batch, entries, 0)
                for row in callers:
                    for _ in range(row.request.calls):
                        self._call(batch, row)
                return
            if "dies between" in hows:
                self._frame(batch, entries, 0)
                self._later(self._rng.choice((0, 1e-4)), self.exit, -11)
                return
            self._frame(batch, entries, wire.DONE)
            if "done twice" in hows:
                self._frame(batch, [], wire.DONE)
            self._end(batch)
            for row in late:
                self._stream(batch, row)

        respond()

    def _wait_for_memory(self, resume: Callable[[], None]) -> None:
        self._waiting_for_memory.append(lambda: self._later(0, resume))
        self._send(pack(WantRelease()))

    def _end(self, batch: _Batch) -> None:
        if self._current is batch:
            self._current = None
            self._next()

    def _stream(self, batch: _Batch, row: _Row) -> None:
        """Send the next response of a decoupled request, or its end; wait for credit as the stub does."""
        request, index = row.request, row.sent
        is_cancelled = row.key in self._cancelled and self._rng.random() < 0.5
        if index < request.responses and not is_cancelled:
            if index - self._credit[row.key] >= _WINDOW:
                self._held[row.key] = lambda: self._stream(batch, row)
                return
            entry = self._entry(row, final=False)
            if entry is None:
                self._wait_for_memory(lambda: self._stream(batch, row))
                return
            self._frame(batch, [entry], 0)
            self._later(request.gap, self._stream, batch, row)
            return
        self._frame(batch, [wire.RESPONSE_HEAD.pack(row.key, wire.FINAL | wire.EMPTY, 0, 0, 0, 0)], 0)
        if row.how == "two ends" and (entry := self._entry(row, final=True)):
            self._frame(batch, [entry], 0)

    def _entry(self, row: _Row, *, final: bool) -> bytes | None:
        """One response; None without memory for it."""
        flags = wire.FINAL if final else 0
        if row.how in {"error", "answered"} and final:
            flags |= wire.ERROR | (wire.ANSWERED if row.how == "answered" else 0)
            return wire.RESPONSE_HEAD.pack(row.key, flags, 1, 0, 4, 0) + b"no: "
        if row.how == "reschedules" and row.tag not in self._rescheduled:
            self._rescheduled.add(row.tag)
            return wire.RESPONSE_HEAD.pack(row.key, wire.EMPTY | wire.RESCHEDULE, 0, 0, 0, 0)
        data = struct.pack("<qq", row.tag, row.sent) + bytes(max(row.size - 16, 0))
        row.sent += 1
        is_batching = self._kind in BATCHING
        sizes = [("OUT", data)]
        if self._kind == "stateful":
            sizes.append(("SUM", struct.pack("<q", row.state + 1)))
        places, end = [], 0
        for name, value in sizes:
            shape = (1, len(value) // 8) if is_batching else (len(value) // 8,)
            places.append(layouts.Place(self._output_names.index(name), "", _INT64, shape, end, len(value)))
            end += -(-len(value) // 64) * 64
        joined = b"".join(value.ljust(-(-len(value) // 64) * 64, b"\0") for _, value in sizes[:-1]) + sizes[-1][1]
        blocks, inline = b"", joined
        if sum(len(value) for _, value in sizes) > wire.INLINE_LIMIT:
            block = self._allocate(len(joined))
            if block < 0:
                row.sent -= 1
                return None
            self._outputs[block : block + len(joined)] = joined
            blocks, inline = struct.pack("<Q", block), b""
        layout = layouts.pack(places)
        return wire.RESPONSE_HEAD.pack(row.key, flags, 0, len(blocks) // 8, 0, len(layout)) + blocks + layout + inline

    def _allocate(self, size: int) -> int:
        """A block, of those released last; -1 if too many are in use."""
        if len(self.blocks) >= self._most_blocks:
            return -1
        size = block_size(size)
        if self._free[size]:
            block = self._free[size].pop()
        else:
            block, self._end_of_blocks = self._end_of_blocks, self._end_of_blocks + size
        self.blocks[block] = size
        return block

    def _frame(self, batch: _Batch, entries: list[bytes], flags: int) -> None:
        head = wire.RESPONSES_HEAD.pack(batch.number, len(entries), flags, batch.started, self._world.now_ns)
        self._send(wire.frame(wire.Kind.RESPONSES, head + b"".join(entries)))
        if entries:
            self._moment("respond")

    # -- calls of other models ----------------------------------------------------------------------------------

    def _call(self, batch: _Batch, row: _Row) -> None:
        self._call_count += 1
        number, target = self._call_count, row.request.target
        kind = kind_of(target)
        self._calls[number] = batch, row
        self._results[number] = 0
        row.calls_open += 1
        elements = row.request.called_elements
        data = struct.pack("<q", row.tag + INNER) + bytes(8 * (elements - 1))
        shape = (1, elements) if kind in BATCHING else (elements,)
        layout = layouts.pack([layouts.Place(wire.OTHER_NAME, "IN", _INT64, shape, 0, len(data))])
        flags = wire.CALL_BLOCKING | (wire.CALL_DECOUPLED if kind in DECOUPLED else 0)
        correlation, sequence = (row.tag, 3) if kind in SEQUENCES else (0, 0)
        name = target.encode()
        head = wire.CALL_HEAD.pack(
            number, correlation, 0, sequence, -1, flags, 0, 0, 0, wire.NO_STRING, 0, len(name), 0, len(layout)
        )
        self._moment("call", row.tag, target)
        self._send(wire.frame(wire.Kind.CALL, head + name + layout + data))

    def _on_result(self, payload: bytes) -> None:
        number, block, _, flags, _, text, layout = wire.RESULT_HEAD.unpack_from(payload)
        if number not in self._calls:
            self._run.fail("a call has a result after its end", self.name)
            return
        batch, row = self._calls[number]
        is_error, is_empty = bool(flags & wire.ERROR), bool(flags & wire.EMPTY)
        if not is_error and not is_empty:
            at = wire.RESULT_HEAD.size + text + layout
            source, offset = (payload, at) if block < 0 else (self._inputs, block)
            tag, index = struct.unpack_from("<qq", source, offset)
            if tag != row.tag + INNER:
                self._run.fail("a call gets the result of another one", row.tag, tag)
            if index != self._results[number]:
                self._run.fail("results of a call are out of order", row.tag, index)
            self._results[number] += 1
        if block >= 0:
            self._send(pack(ReleaseInputs([block])))
        if not is_empty:
            self._send(pack(ResultsConsumed(number, 1)))
        if is_error:
            row.how = "error"
        if not flags & wire.FINAL:
            return
        del self._calls[number]
        self._world.note("result", self.name, row.tag, is_error)
        row.calls_open -= 1
        if row.calls_open:
            return
        row.how = "error" if row.how == "error" else "ok"
        entry = self._entry(row, final=True)
        assert entry is not None
        self._frame(batch, [entry], 0)
        if not any(each.calls_open for each in batch.rows):
            self._frame(batch, [], wire.DONE)
            self._end(batch)

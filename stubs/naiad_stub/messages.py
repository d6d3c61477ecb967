"""The typed messages between host and guest: one class for each kind, and how they are packed and unpacked.

Both sides import this module, so a message has one definition. A class declares its kind (a number of `wire.Kind`) and
its format, one letter for each field in the order of `__slots__`:

    u  unsigned 64-bit number      b  bool, as the number 0 or 1      s  string: u32 length and UTF-8
    q  u32 count and i64 numbers   m  mapping of strings: u32 count, then keys and values as strings

Four kinds are not here: EXECUTE, RESPONSES, CALL and RESULT carry tensors and are on the request path. The functions
that write and read them pack each head with one `struct` (see `wire`), without an object and without the loop over
fields below, which takes five times as long.

`unpack` takes the table of the messages that are legal in one direction: a message of the other direction is malformed.
Each table has a Union type, by which mypy checks that the receiver handles every message.

The classes have hand-written `__slots__` and are not NamedTuples: creating a NamedTuple class takes 0.14 ms, so thirty
would add 4 ms to the start of each guest. These take 0.4 ms.

Shared by host and guest; imports `wire` alone. Python 3.8+.
"""
# ruff: noqa: RUF023, FBT001 - the order of the slots is that of the fields on the wire; a bool is a field as any other

from __future__ import annotations

import struct
from typing import Any, ClassVar, Dict, List, Mapping, Tuple, Type, TypeVar, Union

from naiad_stub.wire import Kind, WireError, bounded_text, frame

_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")


class Message:
    """Base of all messages: compares and prints them by their fields.

    Attributes:
        kind: Number of the kind, from `wire.Kind`.
        format: One letter for each field, in the order of `__slots__`.
    """

    __slots__: ClassVar[Tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment] # as of every class whose fields can be assigned

    kind: ClassVar[int] = 0
    format: ClassVar[str] = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.kind == other.kind and self.values() == other.values()

    def __repr__(self) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__slots__])
        return f"{type(self).__name__}({values})"

    def values(self) -> List[Any]:
        """The values of its fields, in the order of `format`."""
        return [getattr(self, name) for name in self.__slots__]


M = TypeVar("M", bound=Message)

# -- guest to host --------------------------------------------------------------------------------------------------


class Hello(Message):
    """The interpreter runs; the guest waits for LOAD.

    Attributes:
        protocol: The guest's PROTOCOL_VERSION; the host rejects any other than its own.
        pid: Its process id.
        python_version: Such as "3.8.18".
        numpy_version: Such as "1.24.4".
    """

    __slots__ = ("protocol", "pid", "python_version", "numpy_version")
    kind = Kind.HELLO
    format = "uuss"

    def __init__(self, protocol: int, pid: int, python_version: str, numpy_version: str) -> None:
        self.protocol = protocol
        self.pid = pid
        self.python_version = python_version
        self.numpy_version = numpy_version


class Progress(Message):
    """The model is still loading; sent every half second, so that a slow `initialize` does not look like a hang."""

    __slots__ = ()
    kind = Kind.PROGRESS


class Ready(Message):
    """The model is loaded and initialised.

    Attributes:
        has_execute: Whether the model defines `execute`.
        has_is_ready: Whether it defines `is_ready`: only then READINESS_QUERY has a reply.
    """

    __slots__ = ("has_execute", "has_is_ready")
    kind = Kind.READY
    format = "bb"

    def __init__(self, has_execute: bool, has_is_ready: bool) -> None:
        self.has_execute = has_execute
        self.has_is_ready = has_is_ready


class Completed(Message):
    """`auto_complete_config` returned.

    Attributes:
        config: The model configuration as JSON.
    """

    __slots__ = ("config",)
    kind = Kind.COMPLETED
    format = "s"

    def __init__(self, config: str) -> None:
        self.config = config


class Failed(Message):
    """The model cannot be loaded; the guest exits.

    Attributes:
        code: Number of the error code, as in `pb_utils.TritonError`.
        message: The error's text as clients read it; see `bounded_text`.
        traceback_text: Python's traceback, for the log; see `bounded_text`.
    """

    __slots__ = ("code", "message", "traceback_text")
    kind = Kind.FAILED
    format = "uss"

    def __init__(self, code: int, message: str, traceback_text: str) -> None:
        self.code = code
        self.message = bounded_text(message)
        self.traceback_text = bounded_text(traceback_text)


class Log(Message):
    """The model, or the stub on its behalf, logs a message.

    Attributes:
        level: Number of the level, as in `pb_utils.Logger`, and LOG_ONCE.
        file: File of the model that logged.
        line: Line in that file.
        text: The message; see `bounded_text`.
    """

    __slots__ = ("level", "file", "line", "text")
    kind = Kind.LOG
    format = "usus"

    def __init__(self, level: int, file: str, line: int, text: str) -> None:
        self.level = level
        self.file = file
        self.line = line
        self.text = bounded_text(text)


class WantRelease(Message):
    """The output segment is full: the guest blocks until RELEASE_OUTPUTS arrives."""

    __slots__ = ()
    kind = Kind.WANT_RELEASE


class Finalized(Message):
    """The model's `finalize` returned; the guest exits next."""

    __slots__ = ()
    kind = Kind.FINALIZED


class ReleaseInputs(Message):
    """The model no longer refers to these input blocks; the host may free them.

    Attributes:
        blocks: Offsets in the input segment; -1 - N for what batch N had of the segment of frontend processes.
    """

    __slots__ = ("blocks",)
    kind = Kind.RELEASE_INPUTS
    format = "q"

    def __init__(self, blocks: List[int]) -> None:
        self.blocks = blocks


class ResultsConsumed(Message):
    """The model consumed results of a call, so that the called model may send more.

    Attributes:
        call: Number of the call.
        count: Results consumed since the last such message.
    """

    __slots__ = ("call", "count")
    kind = Kind.RESULTS_CONSUMED
    format = "uu"

    def __init__(self, call: int, count: int) -> None:
        self.call = call
        self.count = count


class CancelCalls(Message):
    """The model cancels calls; their remaining results still arrive.

    Attributes:
        calls: Numbers of the calls.
    """

    __slots__ = ("calls",)
    kind = Kind.CANCEL_CALLS
    format = "q"

    def __init__(self, calls: List[int]) -> None:
        self.calls = calls


class DiscardResults(Message):
    """The remaining results of these calls are discarded: the host need not send them.

    Attributes:
        calls: Numbers of the calls.
    """

    __slots__ = ("calls",)
    kind = Kind.DISCARD_RESULTS
    format = "q"

    def __init__(self, calls: List[int]) -> None:
        self.calls = calls


class Query(Message):
    """The model asks the server for something; the host answers with REPLY.

    Attributes:
        number: The guest's number of the query.
        subject: What is asked for, such as "model.load".
        fields: Arguments by name.
    """

    __slots__ = ("number", "subject", "fields")
    kind = Kind.QUERY
    format = "usm"

    def __init__(self, number: int, subject: str, fields: Dict[str, str]) -> None:
        self.number = number
        self.subject = subject
        self.fields = fields


REQUEST_PROGRESS = "request_progress"
"""Subject of a notification: the request `key` waits inside the model, or is computed since `started`."""


READABLE_GPUS = "readable_gpus"
"""Subject of a notification: `uuids` of the GPUs whose memory the guest can read, as hexadecimal digits, by spaces."""


class Notification(Message):
    """The guest reports something that has no reply.

    Attributes:
        subject: What it is about, such as "metrics".
        fields: Values by name.
    """

    __slots__ = ("subject", "fields")
    kind = Kind.NOTIFICATION
    format = "sm"

    def __init__(self, subject: str, fields: Dict[str, str]) -> None:
        self.subject = subject
        self.fields = fields


class MemoryUsage(Message):
    """How much memory a native backend uses, or a model keeps for tensors in GPU memory; replaces the report before it.

    Attributes:
        usage: Number of the memory type, the memory's id and bytes of each kind of memory, one after the other.
    """

    __slots__ = ("usage",)
    kind = Kind.MEMORY_USAGE
    format = "q"

    def __init__(self, usage: List[int]) -> None:
        self.usage = usage


class Readiness(Message):
    """Reply to READINESS_QUERY, on the readiness socket.

    Attributes:
        number: Number of the READINESS_QUERY.
        is_ready: What the model's `is_ready` returned.
        problem: Why the model is not ready, see `bounded_text`; empty where it gave no reason.
    """

    __slots__ = ("number", "is_ready", "problem")
    kind = Kind.READINESS
    format = "ubs"

    def __init__(self, number: int, is_ready: bool, problem: str) -> None:
        self.number = number
        self.is_ready = is_ready
        self.problem = bounded_text(problem)


class BridgeOpened(Message):
    """The guest has mapped a bridge that it reads.

    Attributes:
        number: Number of the bridge.
    """

    __slots__ = ("number",)
    kind = Kind.BRIDGE_OPENED
    format = "u"

    def __init__(self, number: int) -> None:
        self.number = number


# -- host to guest --------------------------------------------------------------------------------------------------


class Load(Message):
    """Load the model, or complete its configuration.

    Attributes:
        fields: Paths, names and settings of the model, by name; `load_spec` packs and unpacks them.
    """

    __slots__ = ("fields",)
    kind = Kind.LOAD
    format = "m"

    def __init__(self, fields: Dict[str, str]) -> None:
        self.fields = fields


class ReleaseOutputs(Message):
    """The host no longer refers to these output blocks; the guest may free them.

    Attributes:
        blocks: Offsets in the output segment; less than 0 for GPU memory (its block as a signed number).
    """

    __slots__ = ("blocks",)
    kind = Kind.RELEASE_OUTPUTS
    format = "q"

    def __init__(self, blocks: List[int]) -> None:
        self.blocks = blocks


class CancelRequests(Message):
    """The clients of these requests cancelled them or disconnected.

    Attributes:
        keys: Keys of the requests.
    """

    __slots__ = ("keys",)
    kind = Kind.CANCEL_REQUESTS
    format = "q"

    def __init__(self, keys: List[int]) -> None:
        self.keys = keys


class Trim(Message):
    """Traffic paused: return free pages to the system."""

    __slots__ = ()
    kind = Kind.TRIM


class Finalize(Message):
    """Call the model's `finalize` and exit."""

    __slots__ = ()
    kind = Kind.FINALIZE


class Credit(Message):
    """Responses to a request have left for the client, so that its sender may send more.

    Attributes:
        key: Key of the request.
        count: Responses since the last such message.
    """

    __slots__ = ("key", "count")
    kind = Kind.CREDIT
    format = "uu"

    def __init__(self, key: int, count: int) -> None:
        self.key = key
        self.count = count


class Reply(Message):
    """Reply to QUERY.

    Attributes:
        number: Number of the QUERY.
        is_ok: Whether the query succeeded.
        code: Number of the error code if it failed.
        text: The result, or the error's message.
    """

    __slots__ = ("number", "is_ok", "code", "text")
    kind = Kind.REPLY
    format = "ubus"

    def __init__(self, number: int, is_ok: bool, code: int, text: str) -> None:
        self.number = number
        self.is_ok = is_ok
        self.code = code
        self.text = text


class LogLevels(Message):
    """Other levels are logged from now on; sent to native backends.

    Attributes:
        levels: A bit for each level that is logged, by its number in the API (LOG carries the same numbers).
    """

    __slots__ = ("levels",)
    kind = Kind.LOG_LEVELS
    format = "u"

    def __init__(self, levels: int) -> None:
        self.levels = levels


class TakesDevice(Message):
    """Whether a model that the guest has called takes inputs in GPU memory; unless told, it does not.

    Attributes:
        model: Name of the model.
        version: The version as the guest asked for it, in a list of one.
        takes: Whether it does.
        gpus: Of which GPUs, as in READABLE_GPUS; `*` for any.
    """

    __slots__ = ("model", "version", "takes", "gpus")
    kind = Kind.TAKES_DEVICE
    format = "sqbs"

    def __init__(self, model: str, version: List[int], takes: bool, gpus: str) -> None:
        self.model = model
        self.version = version
        self.takes = takes
        self.gpus = gpus


class ExportersEnded(Message):
    """Processes have ended whose GPU memory the guest has read: it keeps that memory occupied if it does not close it.

    Attributes:
        numbers: Numbers of the processes, as in DEVICE_PLACE.
    """

    __slots__ = ("numbers",)
    kind = Kind.EXPORTERS_ENDED
    format = "q"

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers


class OpenBridge(Message):
    """Map a bridge, whose descriptor was sent over the socket for descriptors.

    Attributes:
        number: Number of the bridge.
        capacity: Its size in bytes.
        is_written: Whether the guest writes to it; else it reads it, and says BRIDGE_OPENED.
    """

    __slots__ = ("number", "capacity", "is_written")
    kind = Kind.OPEN_BRIDGE
    format = "uub"

    def __init__(self, number: int, capacity: int, is_written: bool) -> None:
        self.number = number
        self.capacity = capacity
        self.is_written = is_written


class UseBridge(Message):
    """The inputs of calls of a model may be in a bridge.

    Attributes:
        number: Number of the bridge.
        model: Name of the model.
        version: The version as the guest asked for it, in a list of one.
    """

    __slots__ = ("number", "model", "version")
    kind = Kind.USE_BRIDGE
    format = "usq"

    def __init__(self, number: int, model: str, version: List[int]) -> None:
        self.number = number
        self.model = model
        self.version = version


class CloseBridge(Message):
    """A bridge has ended: unmap it once nothing refers to its bytes.

    Attributes:
        number: Number of the bridge.
    """

    __slots__ = ("number",)
    kind = Kind.CLOSE_BRIDGE
    format = "u"

    def __init__(self, number: int) -> None:
        self.number = number


class ReadinessQuery(Message):
    """Call the model's `is_ready`; sent on the readiness socket.

    Attributes:
        number: Number of the query.
    """

    __slots__ = ("number",)
    kind = Kind.READINESS_QUERY
    format = "u"

    def __init__(self, number: int) -> None:
        self.number = number


# -- fork server to host --------------------------------------------------------------------------------------------


class ForkServerReady(Message):
    """All modules are imported; the fork server accepts FORK."""

    __slots__ = ()
    kind = Kind.FORK_SERVER_READY


class ForkServerFailed(Message):
    """The fork server cannot fork guests and exits.

    Attributes:
        problem: Why it cannot fork guests.
    """

    __slots__ = ("problem",)
    kind = Kind.FORK_SERVER_FAILED
    format = "s"

    def __init__(self, problem: str) -> None:
        self.problem = problem


class Forked(Message):
    """A guest was forked.

    Attributes:
        number: Number of the FORK.
        pid: Process id of the guest.
    """

    __slots__ = ("number", "pid")
    kind = Kind.FORKED
    format = "uu"

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid


class ForkFailed(Message):
    """A guest could not be forked.

    Attributes:
        number: Number of the FORK.
        problem: The system's error.
    """

    __slots__ = ("number", "problem")
    kind = Kind.FORK_FAILED
    format = "us"

    def __init__(self, number: int, problem: str) -> None:
        self.number = number
        self.problem = problem


class Reaped(Message):
    """How a guest ended.

    Attributes:
        pid: Process id of the guest.
        exit_code: Its exit code.
        signal: The signal that killed it; 0 if none did.
    """

    __slots__ = ("pid", "exit_code", "signal")
    kind = Kind.REAPED
    format = "uuu"

    def __init__(self, pid: int, exit_code: int, signal: int) -> None:
        self.pid = pid
        self.exit_code = exit_code
        self.signal = signal


# -- host to fork server --------------------------------------------------------------------------------------------


class Fork(Message):
    """Fork a guest. The message carries the descriptors of its sockets, segments and pipes.

    Attributes:
        number: Number of the request.
        inputs_size: Bytes of the input segment.
        outputs_size: Bytes of the output segment.
        shared_size: Bytes of the segment that frontend processes write to; 0 without one.
    """

    __slots__ = ("number", "inputs_size", "outputs_size", "shared_size")
    kind = Kind.FORK
    format = "uuuu"

    def __init__(self, number: int, inputs_size: int, outputs_size: int, shared_size: int = 0) -> None:
        self.number = number
        self.inputs_size = inputs_size
        self.outputs_size = outputs_size
        self.shared_size = shared_size


class Reap(Message):
    """Wait for a guest that has ended, and report how.

    Attributes:
        pid: Process id of the guest.
    """

    __slots__ = ("pid",)
    kind = Kind.REAP
    format = "u"

    def __init__(self, pid: int) -> None:
        self.pid = pid


# -- what is legal in which direction ----------------------------------------------------------------------------------

StartMessage = Union[Hello, Progress, Ready, Completed, Failed]
"""What a guest sends while it starts."""
FromGuest = Union[
    Hello,
    Progress,
    Ready,
    Completed,
    Failed,
    Log,
    WantRelease,
    Finalized,
    ReleaseInputs,
    ResultsConsumed,
    CancelCalls,
    DiscardResults,
    Query,
    Notification,
    MemoryUsage,
    BridgeOpened,
]
"""What a guest sends on its channel, beside RESPONSES and CALL."""
FROM_GUEST: Dict[int, Type[FromGuest]] = {
    message.kind: message
    for message in (
        Hello,
        Progress,
        Ready,
        Completed,
        Failed,
        Log,
        WantRelease,
        Finalized,
        ReleaseInputs,
        ResultsConsumed,
        CancelCalls,
        DiscardResults,
        Query,
        Notification,
        MemoryUsage,
        BridgeOpened,
    )
}
ToMainThread = Union[Load, Trim, Finalize]
"""What the host sends to the thread that runs the model, beside EXECUTE."""
TO_MAIN_THREAD: Dict[int, Type[ToMainThread]] = {
    message.kind: message
    for message in (
        Load,
        Trim,
        Finalize,
    )
}
ToAnyThread = Union[
    ReleaseOutputs,
    CancelRequests,
    Credit,
    Reply,
    LogLevels,
    TakesDevice,
    ExportersEnded,
    OpenBridge,
    UseBridge,
    CloseBridge,
]
"""What whichever thread of the guest reads it handles at once, beside RESULT."""
TO_ANY_THREAD: Dict[int, Type[ToAnyThread]] = {
    message.kind: message
    for message in (
        ReleaseOutputs,
        CancelRequests,
        Credit,
        Reply,
        LogLevels,
        TakesDevice,
        ExportersEnded,
        OpenBridge,
        UseBridge,
        CloseBridge,
    )
}
READINESS_QUERIES: Dict[int, Type[ReadinessQuery]] = {ReadinessQuery.kind: ReadinessQuery}
READINESS_REPLIES: Dict[int, Type[Readiness]] = {Readiness.kind: Readiness}
FromForkServer = Union[ForkServerReady, ForkServerFailed, Forked, ForkFailed, Reaped]
"""What a fork server sends."""
FROM_FORK_SERVER: Dict[int, Type[FromForkServer]] = {
    message.kind: message
    for message in (
        ForkServerReady,
        ForkServerFailed,
        Forked,
        ForkFailed,
        Reaped,
    )
}
ToForkServer = Union[Fork, Reap]
"""What the host sends to a fork server."""
TO_FORK_SERVER: Dict[int, Type[ToForkServer]] = {
    message.kind: message
    for message in (
        Fork,
        Reap,
    )
}


# -- packing ----------------------------------------------------------------------------------------------------------


_NUMBERS: Dict[int, struct.Struct] = {
    message.kind: struct.Struct(f"<{len(message.format)}Q") for message in (ResultsConsumed, Credit)
}
"""Messages of numbers alone that are sent for each response of a stream: packed in one go, a third faster."""


def pack(message: Message) -> bytes:
    """One frame with *message*, ready to send."""
    numbers = _NUMBERS.get(message.kind)
    if numbers is not None:
        return frame(message.kind, numbers.pack(*[getattr(message, name) for name in message.__slots__]))
    parts: List[bytes] = []
    for code, name in zip(message.format, message.__slots__):
        value = getattr(message, name)
        if code in "ub":
            parts.append(_U64.pack(value))
        elif code == "s":
            _pack_string(parts, value)
        elif code == "q":
            parts.append(_U32.pack(len(value)))
            parts.append(struct.pack(f"<{len(value)}q", *value))
        else:
            parts.append(_U32.pack(len(value)))
            for key, item in value.items():
                _pack_string(parts, key)
                _pack_string(parts, item)
    return frame(message.kind, b"".join(parts))


def _pack_string(parts: List[bytes], text: str) -> None:
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, as a model's log message may hold; a path never does
        data = text.encode("utf-8", "backslashreplace")
    parts.append(_U32.pack(len(data)))
    parts.append(data)


def unpack(table: Mapping[int, Type[M]], kind: int, payload: bytes) -> M:
    """The message in a frame.

    Args:
        table: The messages that are legal here, by kind.
        kind: The frame's kind.
        payload: Its bytes.

    Raises:
        WireError: If the kind is not in the table, or the payload does not have the format of its message.
    """
    message = table.get(kind)
    if message is None:
        raise WireError(f"a message of kind {kind} is not allowed here")
    reader = _Reader(payload)
    try:
        values = [reader.read(code) for code in message.format]
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"a message of kind {kind} is malformed: {error}") from error
    if reader.position != len(payload):
        raise WireError(f"a message of kind {kind} has {len(payload) - reader.position} bytes too many")
    return message(*values)


class _Reader:
    """Reads fields from a payload, from the start on.

    Attributes:
        position: Bytes read so far.
    """

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.position = 0

    def read(self, code: str) -> Any:
        """The next field, of the format *code*."""
        if code == "u":
            return self._number(_U64)
        if code == "s":
            return self._string()
        if code == "b":
            return self._bool()
        count = self._number(_U32)
        if code == "q":
            numbers = struct.unpack_from(f"<{count}q", self._payload, self.position)
            self.position += 8 * count
            return list(numbers)
        return {self._string(): self._string() for _ in range(count)}

    def _number(self, packer: struct.Struct) -> int:
        (value,) = packer.unpack_from(self._payload, self.position)
        self.position += packer.size
        return int(value)

    def _bool(self) -> bool:
        value = self._number(_U64)
        if value > 1:
            raise WireError(f"a bool is {value}")
        return bool(value)

    def _string(self) -> str:
        length = self._number(_U32)
        end = self.position + length
        if end > len(self._payload):
            raise WireError("a string runs past the end of its message")
        text = str(self._payload[self.position : end], "utf-8", "surrogateescape")
        self.position = end
        return text

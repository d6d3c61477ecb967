"""The protocol between host and guest: framed, typed, versioned messages on one Unix stream socket.

A frame is `<u32 payload length><u16 kind><u16 reserved>` and the payload. Messages say where in a segment tensors lie;
only tensors of few bytes (INLINE_LIMIT) travel in the message itself. Four messages make up the request paths and are
packed by hand: EXECUTE (host to guest) and RESPONSES (guest to host) for requests, CALL (guest to host) and RESULT
(host to guest) for a model's calls to others. All others are rare and carry a short list of fields described by a
format string.

Both sides come from one release, but a guest may be an older one that a custom stub pinned: HELLO carries
PROTOCOL_VERSION, and the host refuses another one.

Shared by host and guest; imports nothing of ours. Python 3.8+.
"""

from __future__ import annotations

import struct

PROTOCOL_VERSION = 4

FRAME = struct.Struct("<IHH")
MAX_FRAME = 256 << 20
"""A frame longer than this is a broken peer, not a message (a model configuration is some kilobytes)."""


class Kind:
    """Kinds of messages. Plain integers: an enum's look-up would cost on every message."""

    # guest to host
    HELLO = 1  # interpreter is up: protocol version, pid, Python version, numpy version
    PROGRESS = 2  # still alive while loading
    READY = 3  # model loaded and initialised: 1 if it defines `execute`, 1 if it defines `is_ready`
    COMPLETED = 4  # auto_complete_config returned: configuration as JSON
    FAILED = 5  # loading failed: code, message, traceback text
    RESPONSES = 6
    LOG = 7  # level, file name, line, message
    WANT_RELEASE = 8  # the output segment is full: hand ranges back now
    FINALIZED = 9
    CALL = 10
    GIVE_BACK = 11  # offsets of input blocks that the model refers to no more
    TAKEN = 12  # call, number of its results that the model has taken
    END_CALLS = 13  # calls to be cancelled
    LEAVE_CALLS = 14  # calls whose further results nobody will look at
    ASK = 15  # number, what is asked, its fields: answered by REPLY
    TELL = 16  # what is told, its fields: not answered
    READINESS = 17  # number of the question, 1 if ready, what was wrong
    # host to guest
    LOAD = 20
    EXECUTE = 21
    RELEASE = 22  # offsets of output blocks that were read
    CANCEL = 23  # keys of requests nobody waits for any more
    TRIM = 24  # traffic paused: give free pages back
    FINALIZE = 25
    RESULT = 26
    CREDIT = 27  # request, number of its responses that have left for the client
    REPLY = 28  # number, 1 if it went well, error code, text
    ASK_READY = 29  # number: run the model's is_ready
    ASK_STANDSTILL = 30  # number: can only answers to calls let the model go on? Told as "standstill"
    # fork server to host
    WARM = 40  # everything is imported
    COLD = 41  # why it cannot fork guests
    FORKED = 42  # number, process id
    NOT_FORKED = 43  # number, why not
    REAPED = 44  # process id, exit code, signal that killed it (0: none)
    # host to fork server
    FORK = 50  # number, sizes of the segments; with their descriptors, the sockets' and the pipes'
    REAP = 51  # process id of a guest that has ended


FIELDS = {
    Kind.HELLO: "uuss",
    Kind.PROGRESS: "",
    Kind.READY: "uu",
    Kind.COMPLETED: "s",
    Kind.FAILED: "uss",
    Kind.LOG: "usus",
    Kind.WANT_RELEASE: "",
    Kind.FINALIZED: "",
    Kind.GIVE_BACK: "q",
    Kind.TAKEN: "uu",
    Kind.END_CALLS: "q",
    Kind.LEAVE_CALLS: "q",
    Kind.ASK: "usm",
    Kind.TELL: "sm",
    Kind.READINESS: "uus",
    Kind.LOAD: "m",
    Kind.RELEASE: "q",
    Kind.CANCEL: "q",
    Kind.TRIM: "",
    Kind.FINALIZE: "",
    Kind.CREDIT: "uu",
    Kind.REPLY: "uuus",
    Kind.ASK_READY: "u",
    Kind.ASK_STANDSTILL: "u",
    Kind.WARM: "",
    Kind.COLD: "s",
    Kind.FORKED: "uu",
    Kind.NOT_FORKED: "us",
    Kind.REAPED: "uuu",
    Kind.FORK: "uuu",
    Kind.REAP: "u",
}
"""Fields of each rare message: u unsigned 64-bit, s string, q list of unsigned 64-bit, m mapping of strings."""

_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")

INLINE_LIMIT = 1024
"""Tensors of a message that take up to so many bytes together travel in it, laid out as in a block.

Cheaper than a block, which has to be found and given back, and touches a page of its own. Of longer ones the copies
into the socket and out of it are dearer (measured: at 4 KiB no gain, at 16 KiB a loss)."""

# EXECUTE: head, bytes of the inputs where they are in no block, then each request: head, request id, correlation id if
# a string, parameters as JSON, its trace where it is TRACED (u32 length and the context as JSON, maybe empty), layout
# of its inputs (`naiad_stub.layout`).
EXECUTE_HEAD = struct.Struct("<IHq")  # batch, requests, input block (-1 - n: none, and n bytes of inputs follow)
REQUEST_HEAD = struct.Struct("<QQQQQHHII")
# key, correlation id, timeout in us, flags, offset of the inputs, bytes of request id, bytes of correlation id
# (NO_STRING: it is the number), bytes of parameters, bytes of the layout
ALL_OUTPUTS = 0xFFFF
NO_STRING = 0xFFFF
TRACED = 1 << 32
"""Among the flags of a request, of which a model sees the lower 32: calls may belong to its trace."""
TRACE_SIZE = struct.Struct("<I")
MAX_ID_BYTES = 0xFFFE

# RESPONSES: head, then each response: head, its blocks (u64 each), parameters as JSON or the error's message, layout of
# its outputs, and their bytes where there are no blocks. A response that is sent while or after `execute` runs names
# its request's batch and is not DONE.
RESPONSES_HEAD = struct.Struct("<IHHQQ")  # batch, responses, flags, start and end of execute (monotonic ns)
DONE = 1  # execute returned; the batch's inputs are free
KEPT = 2  # with DONE: the model still refers to the inputs, GIVE_BACK will free them
RESPONSE_HEAD = struct.Struct("<QBBHII")
# key, flags, error code, output blocks (to release after reading), bytes of text, bytes of the layout
FINAL = 1
ERROR = 2
EMPTY = 4  # a final mark without a response
OWN_BLOCKS = 8  # each output has a block of its own (offsets count from there); else all lie in one
RESCHEDULE = 16  # instead of an answer: the model wants the request again
ANSWERED = 32  # with ERROR: the model answered with it on purpose, nothing failed

# CALL: head, blocks of its inputs (u64 each), where it is CALL_TRACED the key of the request to whose trace it belongs
# (u64), request id, correlation id, parameters as JSON, and what repeated calls have in common: model, requested
# outputs (names parted by zero bytes), layout of the inputs. Then the inputs' bytes where there are no blocks.
CALL_HEAD = struct.Struct("<QQQIqBBHHHIHII")
# call, correlation id, timeout in us, sequence flags, version, flags, own blocks or one (OWN_BLOCKS), blocks,
# bytes of request id, of correlation id (NO_STRING: it is the number), of parameters, of model, of outputs, of layout
CALL_DECOUPLED = 1  # any number of results is welcome
CALL_BLOCKING = 2  # the instance can do nothing else until the call is answered
CALL_AWAITED = 4  # likewise while it executes a batch
CALL_TRACED = 8
CALL_TRACE = struct.Struct("<Q")
# RESULT: head, parameters as JSON or the error's message, layout of the outputs, and their bytes where they are in no
# block of the caller's input segment.
RESULT_HEAD = struct.Struct("<QqBBII")
# call, input block with the outputs, to give back after use (-1 - n: none, and n bytes of outputs follow), flags, error
# code, bytes of text, of the layout

OTHER_NAME = 0xFFFF
"""Index of a tensor whose name is not configured; the name follows the dimensions as `<u16 length><bytes>`."""


def _tensor_struct(dimensions: int) -> struct.Struct:
    return struct.Struct(f"<HBBQQ{dimensions}q")


MAX_DIMENSIONS = 32
TENSOR = tuple(_tensor_struct(n) for n in range(MAX_DIMENSIONS + 1))
"""Tensor by number of dimensions: position of its name, datatype, dimensions, offset, bytes, shape."""


class WireError(Exception):
    """A peer sent something the protocol does not allow."""


def frame(kind: int, payload: bytes) -> bytes:
    """One frame, ready to send."""
    return FRAME.pack(len(payload), kind, 0) + payload


def pack(kind: int, *fields: object) -> bytes:
    """One frame of a rare message, its fields as FIELDS says."""
    parts = []
    for code, value in zip(FIELDS[kind], fields):
        if code == "u":
            parts.append(_U64.pack(value))
        elif code == "s":
            _pack_string(parts, value)  # type: ignore[arg-type]
        elif code == "q":
            parts.append(_U32.pack(len(value)))  # type: ignore[arg-type]
            parts.append(struct.pack(f"<{len(value)}Q", *value))  # type: ignore[arg-type, misc]
        else:
            parts.append(_U32.pack(len(value)))  # type: ignore[arg-type]
            for key, item in value.items():  # type: ignore[attr-defined]
                _pack_string(parts, key)
                _pack_string(parts, item)
    return frame(kind, b"".join(parts))


def _pack_string(parts: list[bytes], text: str) -> None:
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, in a model's message; paths never hold one
        data = text.encode("utf-8", "backslashreplace")
    parts.append(_U32.pack(len(data)))
    parts.append(data)


def unpack(kind: int, payload: bytes) -> tuple:  # type: ignore[type-arg]
    """The fields of a rare message.

    Raises:
        WireError: Where the payload is not what FIELDS says.
    """
    reader = _Reader(payload)
    try:
        values = tuple([reader.read(code) for code in FIELDS[kind]])
    except (KeyError, struct.error, UnicodeDecodeError) as error:
        raise WireError(f"message of kind {kind} is malformed: {error}") from error
    if reader.position != len(payload):
        raise WireError(f"message of kind {kind} has {len(payload) - reader.position} bytes too many")
    return values


class _Reader:
    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.position = 0

    def read(self, code: str) -> object:
        if code == "u":
            return self._number(_U64)
        if code == "s":
            return self._string()
        count = self._number(_U32)
        if code == "q":
            values = struct.unpack_from(f"<{count}Q", self.payload, self.position)
            self.position += 8 * count
            return list(values)
        return {self._string(): self._string() for _ in range(count)}

    def _number(self, packer: struct.Struct) -> int:
        (value,) = packer.unpack_from(self.payload, self.position)
        self.position += packer.size
        return int(value)

    def _string(self) -> str:
        length = self._number(_U32)
        end = self.position + length
        if end > len(self.payload):
            raise WireError("a string runs past the end of its message")
        text = str(self.payload[self.position : end], "utf-8", "surrogateescape")
        self.position = end
        return text


class FrameReader:
    """Cuts a stream of received bytes into frames."""

    __slots__ = ("_missing", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0  # bytes without which no further frame can be complete

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Frames complete so far, as kind and payload; the rest is kept.

        Raises:
            WireError: For a frame longer than MAX_FRAME.
        """
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []  # joined once, when all is here: a long frame comes in a thousand pieces
            data = b"".join(self._parts)
        frames = []
        position, end = 0, len(data)
        missing = FRAME.size
        while end - position >= FRAME.size:
            length, kind, _ = FRAME.unpack_from(data, position)
            if length > MAX_FRAME:
                raise WireError(f"a message of {length} bytes is longer than any the protocol has")
            start = position + FRAME.size
            if end - start < length:
                missing += length
                break
            position = start + length
            frames.append((kind, data[start:position]))
        if position < end:
            self._parts = [data[position:]]
            self._missing = missing - (end - position)
        elif self._parts:
            self._parts = []
        return frames

"""The protocol between host and guest: framed, versioned messages on one Unix stream socket.

A frame is `<u32 payload length><u16 kind><u16 reserved>` and the payload. Messages refer to tensors by their offset in
a shared segment; only tensors of up to INLINE_LIMIT bytes are in the message itself. This module has what the request
path needs: frames, and the heads of the four messages that carry tensors. EXECUTE (host to guest) and RESPONSES (guest
to host) are requests and their responses; CALL (guest to host) and RESULT (host to guest) are a model's calls to other
models. All other messages are classes in `naiad_stub.messages`.

HELLO carries PROTOCOL_VERSION, and the host rejects another one than its own: host and guest usually come from one
release, but a custom stub may be older.

Shared by host and guest; imports nothing of ours. Python 3.8+.
"""

from __future__ import annotations

import signal
import struct
from typing import Mapping, Optional

PROTOCOL_VERSION = 8

FRAME = struct.Struct("<IHH")
MAX_FRAME = 256 << 20
"""Longer frames are rejected: only a broken peer sends them. (A model configuration has some kilobytes.)"""
MAX_GUEST_FRAME = 16 << 20
"""The same for what the host receives, since it decodes a message in one step, during which it serves no one else."""
MAX_RELAYED = (1 << 32) - 1
"""The same between a guest and the processes that the model has forked, whose messages contain all tensors."""
MAX_QUERY = 64 << 20
"""The same for a QUERY, in which a model may send files of a model to load."""
MAX_PARAMETERS = 4 << 20
"""Bytes that the parameters of one response or call of a model may have."""
MAX_TEXT = 1 << 16
"""Characters of an error's text or of a log message. Longer texts are cut in the middle: the first and the last lines
say most."""

# Asks a guest for the Python stacks of its threads. Real-time signals have no usual meaning, and models use SIGUSR1 and
# SIGUSR2. Other systems than Linux lack them.
STACKS_SIGNAL: int = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2


class Kind:
    """Numbers of the kinds of messages. Plain integers: an enum's look-up would cost on every message."""

    # guest to host
    HELLO = 1
    PROGRESS = 2
    READY = 3
    COMPLETED = 4
    FAILED = 5
    RESPONSES = 6
    LOG = 7
    WANT_RELEASE = 8
    FINALIZED = 9
    CALL = 10
    RELEASE_INPUTS = 11
    RESULTS_CONSUMED = 12
    CANCEL_CALLS = 13
    DISCARD_RESULTS = 14
    QUERY = 15
    NOTIFICATION = 16
    READINESS = 17
    REPORTS = 18
    MEMORY_USAGE = 19
    # host to guest
    LOAD = 20
    EXECUTE = 21
    RELEASE_OUTPUTS = 22
    CANCEL_REQUESTS = 23
    TRIM = 24
    FINALIZE = 25
    RESULT = 26
    CREDIT = 27
    REPLY = 28
    READINESS_QUERY = 29
    BRIDGE_OPENED = 30  # guest to host
    LOG_LEVELS = 31
    TAKES_DEVICE = 32
    EXPORTERS_ENDED = 33
    OPEN_BRIDGE = 34
    USE_BRIDGE = 35
    CLOSE_BRIDGE = 36
    # fork server to host
    FORK_SERVER_READY = 40
    FORK_SERVER_FAILED = 41
    FORKED = 42
    FORK_FAILED = 43
    REAPED = 44
    # host to fork server
    FORK = 50
    REAP = 51


LOG_ONCE = 1 << 8
"""Added to the level of LOG: the host logs the message once for a loaded model, whichever of its guests sends it."""

INLINE_LIMIT = 1024
"""Tensors of up to this many bytes together are in the message itself, laid out as in a block.

That is cheaper than a block, which must be allocated and released, and touches another page. For more bytes the copies
into the socket and out of it cost more (measured: no gain at 4 KiB, a loss at 16 KiB)."""

# EXECUTE: head; bytes of the inputs unless they are in a block; then each request: head, request id, correlation id
# if it is a string, parameters as JSON, its trace if TRACED (u32 length and the context as JSON, may be empty), where
# its inputs in GPU memory are if DEVICE_INPUTS (u16 count and DEVICE_PLACE each), where to write its outputs if
# OUTPUT_PLACES (u16 count and OUTPUT_PLACE each), in the memory of which GPUs outputs may stay if GPU_READERS (u16
# count and the UUID of each), the number of a bridge if BRIDGE_OUTPUTS, layout of its inputs (`naiad_stub.layout`). The
# layout leaves room in the block for inputs in GPU memory, where the host writes nothing.
EXECUTE_HEAD = struct.Struct("<IHq")  # batch, requests, input block (-1 - n: none, and n bytes of inputs follow)
EXECUTE_FRAME = struct.Struct(FRAME.format + EXECUTE_HEAD.format[1:])
"""The head of the frame and the one of the message, packed in one step."""
REQUEST_HEAD = struct.Struct("<QQQQQHHII")
# key, correlation id, timeout in us, flags, offset of the inputs, bytes of request id, bytes of correlation id
# (NO_STRING: it is the number), bytes of parameters, bytes of the layout
ALL_OUTPUTS = 0xFFFF
NO_STRING = 0xFFFF
TRACED = 1 << 32
"""Flag of a request beside the 32 that models see: its calls belong to its trace."""
SHARED_INPUTS = 1 << 33
"""Flag of a request beside them: its inputs are in a bridge, at its offset (see BRIDGE_SHIFT); in bridge 0, which is
the segment that frontend processes write to."""
DEVICE_INPUTS = 1 << 34
"""Flag of a request beside them: some of its inputs are in GPU memory."""
DEVICE_OUTPUTS = 1 << 35
"""Flag of a request beside them: its outputs may stay in GPU memory."""
OUTPUT_PLACES = 1 << 36
"""Flag of a request beside them: some of its outputs may stay in GPU memory, or are to be written to it."""
GPU_READERS = 1 << 37
"""Flag of a request beside them: outputs may stay in the memory of those GPUs alone that their readers can use."""
BRIDGE_OUTPUTS = 1 << 38
"""Flag of a request beside them: its outputs are for the readers of a bridge."""
BRIDGE_NUMBER = struct.Struct("<I")
BRIDGE_SHIFT = 40
"""Bits of an offset in a segment. Above them, blocks and offsets have the number of a bridge (`naiad_stub.bridges`); 0
is the guest's own segment."""
BRIDGE_OFFSETS = (1 << BRIDGE_SHIFT) - 1
BRIDGE_FROM = 256 << 10
"""Bytes of the tensors of a request or response from which they may be in a bridge."""
DEVICE_COUNT = struct.Struct("<H")
GPU_UUID_SIZE = 16
DEVICE_PLACE = struct.Struct("<H16s64sQQ")
"""Position of a tensor in its layout, UUID of the GPU, the driver's handle of the memory, number of the exporter whose
memory it is, offset in the memory."""
OUTPUT_PLACE = struct.Struct("<H16s64sQQQ")
"""The same of a place that an output is to be written to, and its bytes; the position is that of the output's name.
Exporter 0: there is no such place, but the output may stay in GPU memory."""
CLIENT_MEMORY = 1 << 62
"""Added to the number of an exporter that is not a guest but a region that a client has registered."""
DEVICE_HANDLE = struct.Struct("<16s64s")
"""The same as the process itself sends it: UUID and handle."""
DEVICE_BLOCK = 1 << 63
"""Added to the number of a region of GPU memory where the number of an output block is expected."""
WRITTEN_BLOCK = (1 << 64) - 1
"""In place of the block of an output that was written to its OUTPUT_PLACE; no DEVICE_HANDLE belongs to it."""
TRACE_SIZE = struct.Struct("<I")
MAX_ID_BYTES = 0xFFFE

# RESPONSES: head, then each response: head, its blocks (u64 each) and DEVICE_HANDLE of each in GPU memory, parameters
# as JSON or the error's message, layout of its outputs, and their bytes unless they are in blocks. A response that a
# sender sends names the batch of its request and has no DONE. After the responses, what a native backend has reported:
# as many REPORT as the flags say above REPORTS_SHIFT.
RESPONSES_HEAD = struct.Struct("<IHHQQ")  # batch, responses, flags, start and end of execute (monotonic ns)
RESPONSES_FRAME = struct.Struct(FRAME.format + RESPONSES_HEAD.format[1:])
"""The head of the frame and the one of the message, packed in one step."""
DONE = 1  # execute returned; the batch's inputs are free
KEPT = 2  # with DONE: the model still refers to the inputs, RELEASE_INPUTS will free them
KEPT_SHARED = 4  # with DONE: to those with SHARED_INPUTS; RELEASE_INPUTS then names -1 - batch in place of a block
REPORTS_SHIFT = 4
MAX_REPORTS = (1 << 16 - REPORTS_SHIFT) - 1
RESPONSE_HEAD = struct.Struct("<QBBHII")
# key, flags, error code, output blocks (to release after reading), bytes of text, bytes of the layout
FINAL = 1
ERROR = 2
EMPTY = 4  # no response: a final mark, or RESCHEDULE
OWN_BLOCKS = 8  # each output has a separate block, at which its offset begins; else all are in one block
RESCHEDULE = 16  # the model asks for the request to be scheduled again
ANSWERED = 32  # with ERROR: the model returned the error as its response, nothing failed
DEVICE = 64  # with OWN_BLOCKS: some blocks are in GPU memory; in RESULT: some outputs are

# REPORTS: what a native backend reports for the statistics, any number of records. What it reports while it executes a
# batch is in the RESPONSES that end the batch, unless it is too much.
REPORT = struct.Struct("<BQQQQQ")
# kind, key of the request or rows of the batch, start of Execute, start and end of the computation, end of Execute
# (monotonic ns)
REPORT_BATCH = 0
REPORT_SUCCESS = 1
REPORT_FAILURE = 2
# Reports about one response of a request: its position in place of the key, and durations in place of times, counted
# from 0: 0 twice, then until its outputs were computed, and until they were written.
REPORT_RESPONSE = 3
REPORT_FAILED_RESPONSE = 4
REPORT_EMPTY_RESPONSE = 5
REPORT_CANCELLED_RESPONSE = 6

# CALL: head; blocks of its inputs (u64 each) and DEVICE_HANDLE of each in GPU memory; if CALL_TRACED the key of the
# request to whose trace it belongs (u64); request id, correlation id, parameters as JSON; then what repeated calls have
# in common, so that it is decoded once: model, requested outputs (names separated by zero bytes), layout of the inputs.
# Last the bytes of the inputs unless they are in blocks.
CALL_HEAD = struct.Struct("<QQQIqBBHHHIHII")
# call, correlation id, timeout in us, sequence flags, version, flags, own blocks or one (OWN_BLOCKS), blocks,
# bytes of request id, of correlation id (NO_STRING: it is the number), of parameters, of model, of outputs, of layout
CALL_DECOUPLED = 1  # the caller accepts any number of results
CALL_BLOCKING = 2  # the instance can do nothing else until the call ends
CALL_AWAITED = 4  # the same, but only while it executes a batch
CALL_TRACED = 8
CALL_USES_DEVICE = 16  # the caller uses GPU memory, and is told by TAKES_DEVICE whether the model takes it
CALL_DEVICE_OUTPUTS = 32  # the outputs may stay in GPU memory
CALL_BRIDGES = 64  # the outputs may be in bridges
CALL_TRACE = struct.Struct("<Q")
# RESULT: head, parameters as JSON or the error's message, where outputs in GPU memory are if DEVICE (as in EXECUTE),
# layout of the outputs, and their bytes unless they are in a
# block of the caller's input segment.
RESULT_HEAD = struct.Struct("<QqqBBII")
# call, input block with the outputs, to release after use (-1 - n: none, and n bytes of outputs follow), version of the
# model that answers (-1: none did), flags, error code, bytes of text, bytes of the layout

OTHER_NAME = 0xFFFF
"""Index of a tensor whose name is not configured; the name follows the dimensions as `<u16 length><bytes>`."""


def _tensor_struct(dimensions: int) -> struct.Struct:
    return struct.Struct(f"<HBBQQ{dimensions}q")


MAX_DIMENSIONS = 32
TENSOR = tuple(_tensor_struct(n) for n in range(MAX_DIMENSIONS + 1))
"""Tensor by number of dimensions: position of its name, datatype, dimensions, offset, bytes, shape."""


MEMORY_LIMIT_STATUS = 86
"""Exit status of a guest that has reached the limit on its address space; shells and Python use other numbers."""


def bounded_text(text: str) -> str:
    """*text*, without its middle if it is longer than MAX_TEXT."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]} ... [{len(text) - MAX_TEXT} characters are left out here] ... {text[-half:]}"


class WireError(Exception):
    """A peer sent something the protocol does not allow."""


def frame(kind: int, payload: bytes) -> bytes:
    """One frame, ready to send."""
    return FRAME.pack(len(payload), kind, 0) + payload


class FrameReader:
    """Splits a stream of received bytes into frames.

    Args:
        limit: The longest payload.
        exceptions: The longest payload of kinds that may be longer.
    """

    __slots__ = ("_exceptions", "_limit", "_missing", "_parts")

    def __init__(self, limit: int = MAX_FRAME, exceptions: Optional[Mapping[int, int]] = None) -> None:
        self._limit = limit
        self._exceptions = exceptions or {}
        self._parts: list[bytes] = []
        self._missing = 0  # bytes still missing for the next complete frame

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The complete frames so far, as kind and payload; the rest is kept.

        Raises:
            WireError: For a frame that is too long.
        """
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []  # joined once, when all is here: a long frame arrives in thousands of pieces
            data = b"".join(self._parts)
        frames = []
        position, end = 0, len(data)
        missing = FRAME.size
        while end - position >= FRAME.size:
            length, kind, _ = FRAME.unpack_from(data, position)
            if length > self._limit and length > self._exceptions.get(kind, 0):
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

    def take_long(self, limit: int) -> Optional[tuple[int, int, bytes]]:
        """Kind, size and first bytes of an incomplete payload of more than *limit* bytes, unless `feed` has more of it.

        The caller receives the rest; the next bytes given to `feed` are those of the frame behind it.
        """
        if len(self._parts) != 1 or len(self._parts[0]) < FRAME.size:
            return None
        length, kind, _ = FRAME.unpack_from(self._parts[0])
        if length <= limit:
            return None
        begun = self._parts.pop()[FRAME.size :]
        return kind, length, begun

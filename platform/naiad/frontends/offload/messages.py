"""What the host and an offload process exchange: a task and its outcome.

Both travel in memory that the two processes share (memfd_create(2)), whose descriptor is sent over a socket together
with a short head of fixed size. So the socket never has more to send than fits into its buffer, and long contents are
not copied through it.

    a task:     | pickled function and arguments | content             |
    an outcome: | sizes of buffers | pickled value | buffer 0 | buffer 1 ... |

An outcome's long buffers, such as the bytes of tensors, are beside its pickle (PEP 574): the host uses them where they
are. A value may also contain a `Deferred`: something that only the host has, such as a part of the request that was not
sent, or a region of shared memory. The host puts the real object in its place when it reads the outcome.
"""

from __future__ import annotations

import array
import io
import mmap
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from naiad.protocol.inference import Buffer

TASK_HEAD = Struct("<QQQ")  # size of the pickle, size of the content, and bytes of memory that the task may use
OUTCOME_HEAD = Struct("<BQQ")  # kind, number of buffers, size of the pickle

_WRITTEN_AT_ONCE = 1 << 20
_OUT_OF_BAND_FROM = 1 << 12  # buffers of at least so many bytes are not pickled


class OutcomeKind(IntEnum):
    """How a task ended."""

    VALUE = 0
    ERROR = 1  # it raised a `NaiadError`, or another exception that its caller expects
    UNEXPECTED = 2  # it raised an exception that is a bug; the value is its traceback
    OUT_OF_MEMORY = 3  # it needed more memory than the task may use


@dataclass(frozen=True, slots=True)
class Deferred:
    """A placeholder for an object that only the host has."""

    key: tuple[Any, ...]  # what the host finds the object by: a word for its kind, then the arguments


class Outcome(NamedTuple):
    """How a task ended."""

    kind: OutcomeKind
    value: Any


def long_buffer(data: Buffer) -> Any:
    """*data*, marked as a buffer that is kept beside the pickle if it is long."""
    return pickle.PickleBuffer(data) if len(data) >= _OUT_OF_BAND_FROM else bytes(data)


class _ValuePickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.key if isinstance(value, Deferred) else None


class _ValueUnpickler(pickle.Unpickler):
    def __init__(self, text: io.BytesIO, buffers: Iterable[Buffer], resolve: Callable[[tuple[Any, ...]], Any]) -> None:
        super().__init__(text, buffers=buffers)
        self._resolve = resolve

    def persistent_load(self, key: Any) -> Any:
        return self._resolve(key)


def write_outcome(outcome: Outcome) -> tuple[int, bytes]:
    """Write an outcome to new shared memory; return its descriptor and the head to send with it."""
    buffers: list[pickle.PickleBuffer] = []
    text = io.BytesIO()
    _ValuePickler(text, protocol=5, buffer_callback=buffers.append).dump(outcome.value)
    raw = [buffer.raw() for buffer in buffers]
    sizes = array.array("Q", [len(buffer) for buffer in raw])
    descriptor = written_memory([sizes.tobytes(), text.getbuffer(), *raw])
    return descriptor, OUTCOME_HEAD.pack(outcome.kind, len(raw), len(text.getbuffer()))


def read_outcome(head: bytes, descriptor: int, resolve: Callable[[tuple[Any, ...]], Any]) -> Outcome:
    """Read an outcome, whose long buffers are views of the shared memory; *resolve* finds what a `Deferred` names."""
    kind, count, text_size = OUTCOME_HEAD.unpack(head)
    view = memoryview(mmap.mmap(descriptor, 0))
    start = count * 8 + text_size
    sizes = view[: count * 8].cast("Q").tolist()
    buffers = []
    for size in sizes:
        buffers.append(view[start : start + size])
        start += size
    text = io.BytesIO(view[count * 8 : count * 8 + text_size])
    return Outcome(OutcomeKind(kind), _ValueUnpickler(text, buffers, resolve).load())


def written_memory(parts: Sequence[Buffer]) -> int:
    """The descriptor of new memory that can be shared, with *parts*. Releases the interpreter lock while it copies."""
    descriptor = os.memfd_create("naiad-offload", os.MFD_CLOEXEC)
    try:
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                view = view[os.write(descriptor, view[:_WRITTEN_AT_ONCE]) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""Bytearrays whose memory is not written to before its bytes arrive.

`bytearray(size)` writes zeros to all of it, which costs a page fault for each 4 KiB, for memory that a client has only
announced. CPython's C API makes and resizes bytearrays without that: long ones are mapped, and use memory as it is
written. Callers must hand out only what they have written, since the rest may be old contents of the heap.

Long ones are freed on a thread, since that takes long, too.
"""

from __future__ import annotations

import ctypes

from naiad.core.heap import FREED_APART, discard_on_thread

_resize = ctypes.pythonapi.PyByteArray_Resize
_resize.argtypes = (ctypes.py_object, ctypes.c_ssize_t)
_resize.restype = ctypes.c_int


class _GrowingBytes(bytearray):
    """A bytearray that leaves long memory to a thread. It is finalized when no view of it is left."""

    def __del__(self) -> None:
        if len(self) >= FREED_APART:
            discard_on_thread(self)


def new_bytes(size: int) -> bytearray:
    """A bytearray of *size* bytes with any contents; MemoryError if the system refuses memory."""
    # Not by PyByteArray_FromStringAndSize, which frees a half-made object if memory is exhausted.
    data = _GrowingBytes()
    _resize(data, size)
    return data


def resize_bytes(data: bytearray, size: int) -> None:
    """Let *data* have *size* bytes, new ones with any contents; BufferError if something refers to it."""
    _resize(data, size)

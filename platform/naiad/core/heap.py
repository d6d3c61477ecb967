"""The C library's heap in a server process: which blocks it may keep, and when it returns free memory to the system.

glibc takes long blocks from the system one by one, and returns each when it is freed. What "long" means grows: once a
block of 30 MB was freed, blocks of up to 30 MB come from the heap. There, the buffer of a message that grows with what
arrives is copied to a larger block each time and leaves a gap. In a process that receives messages of 65 MB up to a
budget of 240 MB, these gaps once took 140 MB more, and 40 MB of them stayed. So the limit is fixed here.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import mmap

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LONG = 1 << 20
"""Bytes from which the system provides a block by itself. Shorter ones are used again without page faults. Messages of
1 to 30 MB cost the same as with glibc's own limit, and gaps of this size do no harm."""
FREED_APART = 16 << 20  # bytes from which `discard_on_thread` frees memory: else the event loop is held for 2 ms
_NO_BYTES = ctypes.c_char * 0
_FREE = 4 << 20  # free bytes kept at the end of the heap: short messages of a few clients cause no page faults


def fix_thresholds() -> None:
    """Fix the limit for the life of this process. Does nothing with another C library than glibc."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LONG)
        mallopt(_M_TRIM_THRESHOLD, _FREE)


def trim() -> None:
    """Return free pages within the heap: glibc itself returns only those at its end. Does nothing elsewhere."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def address_of(data: bytearray | mmap.mmap | memoryview) -> int:
    """Where writable bytes begin in this process's memory."""
    return ctypes.addressof(_NO_BYTES.from_buffer(data))


def discard_on_thread(memory: bytearray | mmap.mmap) -> None:
    """Drop memory that nothing else refers to, once a thread has returned its pages to the system.

    The kernel takes 0.1 to 0.2 ms for each MiB, and frees the memory of an object in one piece: of a message of 200 MB
    in 20 to 36 ms, during which Python's lock is held. The thread does it without that lock. What is read from *memory*
    afterwards is undefined. Where no thread can be started, the memory is freed with its last reference.
    """
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(_discard, (memory,))


def _discard(memory: bytearray | mmap.mmap) -> None:
    address = address_of(memory)
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages: the C library's own bytes are before the first
    end = (address + len(memory)) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        with contextlib.suppress(AttributeError, OSError):
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(mmap.MADV_DONTNEED))
    # So that a finalizer that calls this has nothing to do when it is called once more.
    if isinstance(memory, bytearray):
        memory.clear()
    else:
        memory.close()

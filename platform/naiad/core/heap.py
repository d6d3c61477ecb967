"""The C library's heap in a server process: which blocks it may keep, and when it returns free memory to the system.

glibc takes long blocks from the system one by one, and returns each when it is freed. What "long" means grows: once a
block of 30 MB was freed, blocks of up to 30 MB come from the heap. There, the buffer of a message that grows with what
arrives is copied to a larger block each time and leaves a gap. In a process that receives messages of 65 MB up to a
budget of 240 MB, these gaps once took 140 MB more, and 40 MB of them stayed. So the limit is fixed here.
"""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["fix_thresholds", "trim"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LONG = 1 << 20
"""Bytes from which the system provides a block by itself. Shorter ones are used again without page faults. Messages of
1 to 30 MB cost the same as with glibc's own limit, and gaps of this size do no harm."""
_FREE = 4 << 20
"""Free bytes at the end of the heap that are kept, so that short messages of a few clients cause no page faults."""


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

"""Bytes of a segment that report when their last reference is dropped, however many objects hold parts of them.

A response's bytes are sliced, joined and kept by code that knows nothing of segments: a transport's write buffer,
gRPC's C core. That code cannot report when it is done with them. But all slices are made from one numpy array, and a
weak reference to that array calls back when the last slice is freed. A lost reference therefore cannot leak a block.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

# The array that all slices of tracked bytes are made from: their `obj`.
Bytes: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint8]]"


def track(
    segment: memoryview, start: int, size: int, on_dropped: Callable[[object], None]
) -> tuple[memoryview, weakref.ref[Bytes]]:
    """*size* bytes of a segment, and a weak reference that calls *on_dropped* after the last reference to them.

    The caller must keep the weak reference until then.
    """
    # Here, as importing numpy takes as long as starting a guest; nothing has to wait for both.
    import numpy as np

    array = np.frombuffer(segment, dtype=np.uint8, count=size, offset=start)
    view = memoryview(array)  # type: ignore[arg-type] # numpy arrays export buffers on every version
    return view, weakref.ref(array, on_dropped)

"""Bytes of a segment whose last reference is noticed, however many layers hold parts of them until then."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Bytes: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint8]]"
"""What all views of watched bytes are made of: their `obj`."""


def watch(
    segment: memoryview, start: int, size: int, gone: Callable[[object], None]
) -> tuple[memoryview, weakref.ref[Bytes]]:
    """*size* bytes of a segment, and what calls *gone* after the last reference to them, if it is kept until then."""
    # Here, as importing it takes as long as starting a guest, which nothing has to wait for.
    import numpy as np

    array = np.frombuffer(segment, dtype=np.uint8, count=size, offset=start)
    view = memoryview(array)  # type: ignore[arg-type] # numpy arrays export buffers on every version
    return view, weakref.ref(array, gone)

"""The elements of BYTES tensors: how many a tensor holds, counted without a loop in Python where possible.

A BYTES tensor is a chain: each element begins with its length, which says where the next element begins. So the
elements have to be found one after the other, at about 0.1 µs each in Python, a second for ten million of them. Two
guesses find nearly all elements of real tensors with numpy. Each guess is verified, so that the count is exact for any
bytes:

- **Equal lengths.** If the next elements are as long as the first one, their lengths are at regular distances.
- **Short texts.** An element of 1 to 255 bytes begins with its length and three zero bytes. Texts contain no zero byte,
  so that all such places are beginnings of elements. That is verified by comparing each place with the end of the
  element before it.

Where both guesses fail, the elements are walked one by one. All work is done in steps of about a millisecond, so that a
caller on the event loop can let others run between them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from naiad.protocol.inference import Buffer, StringScan
from naiad.protocol.steps import finish

if TYPE_CHECKING:
    import numpy as np

_LENGTH = Struct("<I")
_PREFIX = _LENGTH.size

_VECTOR_FROM = 4096  # Bytes from which numpy is used. A call of it costs as much as walking some ten elements.
_EQUAL_PER_STEP = 1 << 15  # elements compared in one step: 3 ms where each is a cache miss
_WINDOW = 1 << 17  # bytes that one step searches for short texts: about 1 ms
_WALKED_PER_STEP = 1 << 13  # elements that one step walks: about 1 ms
_MIN_RUN = 64  # elements that a guess must find at once to be worth its cost
_PACKED_BY_NUMPY_FROM = 64  # elements from which numpy packs them faster than a loop
_MAX_EXCEPTIONS = 4  # one place in so many may be no beginning of an element, or the guess is given up


def scan_strings(data: Buffer, limit: int) -> StringScan:
    """Count the complete elements of a BYTES tensor, at most *limit* of them."""
    if len(data) < _VECTOR_FROM:
        return _walk(data, StringScan(0, 0), len(data), limit, limit)
    return finish(scan_steps(data, limit))


def scan_steps(data: Buffer, limit: int) -> Generator[None, None, StringScan]:
    """As `scan_strings`, in steps of about a millisecond."""
    import numpy as np  # imported late: see `protocol.numpy_types`

    size = len(data)
    scan = StringScan(0, 0)
    if not size:
        return scan
    view = np.frombuffer(data, np.uint8)
    walked = _MIN_RUN  # how many elements to walk before the next guess; doubled each time the guesses fail
    while scan.elements < limit and scan.position < size:
        before = scan.elements
        scan = _equal_lengths(view, scan, limit)
        if scan.elements - before < _MIN_RUN:
            scan = _short_texts(view, scan, limit)
        if scan.elements - before >= _MIN_RUN:
            walked = _MIN_RUN
            yield
            continue
        stop = min(limit, scan.elements + walked)
        while scan.elements < stop:
            before = scan.elements
            scan = _walk(data, scan, size, limit, min(stop, before + _WALKED_PER_STEP))
            if scan.elements == before:
                return scan
            yield
        walked = min(walked * 2, _WALKED_PER_STEP * 16)
    return scan


def pack_chunk(elements: Sequence[bytes] | Sequence[str]) -> bytes:
    """Some elements as the bytes of a BYTES tensor, texts as UTF-8; TypeError if they are not of one type.

    Needs temporary memory of a few times the result, so callers pack long tensors in chunks. UnicodeEncodeError for a
    text with a surrogate.
    """
    first = elements[0] if elements else b""
    if isinstance(first, str):
        text = "".join(elements)  # type: ignore[arg-type] # raises the TypeError for other elements
        if text.isascii() and len(elements) >= _PACKED_BY_NUMPY_FROM:
            return _interleave(elements, text.encode())
        elements = [each.encode() for each in elements]  # type: ignore[union-attr] # they were joined as texts
    content = b"".join(elements)  # type: ignore[arg-type] # raises the TypeError for other elements
    if len(elements) >= _PACKED_BY_NUMPY_FROM:
        return _interleave(elements, content)
    return b"".join([part for each in elements for part in (_LENGTH.pack(len(each)), each)])  # type: ignore[misc] # as above


def _interleave(elements: Sequence[bytes] | Sequence[str], content: bytes) -> bytes:
    """*content*, the elements one after the other, with the length of each element before it."""
    import numpy as np  # imported late: see `protocol.numpy_types`

    lengths = np.fromiter(map(len, elements), np.dtype("<u4"), len(elements))
    packed = np.empty(len(content) + _PREFIX * len(elements), np.uint8)
    starts = np.zeros(len(elements), np.int64)
    np.cumsum(lengths[:-1] + np.int64(_PREFIX), out=starts[1:])
    is_content = np.ones(len(packed), np.bool_)
    for offset in range(_PREFIX):
        place = starts + offset
        packed[place] = lengths.view(np.uint8)[offset::_PREFIX]
        is_content[place] = False
    packed[is_content] = np.frombuffer(content, np.uint8)
    return packed.tobytes()


def _walk(data: Buffer, scan: StringScan, size: int, limit: int, stop: int) -> StringScan:
    """Count elements one by one until there are *stop* of them, or no complete one follows."""
    count, position = scan
    unpack = _LENGTH.unpack_from
    last = size - _PREFIX
    stop = min(stop, limit)
    while count < stop and position <= last:
        end = position + _PREFIX + unpack(data, position)[0]
        if end > size:
            break
        position = end
        count += 1
    return StringScan(count, position)


def _equal_lengths(view: np.ndarray[Any, np.dtype[np.uint8]], scan: StringScan, limit: int) -> StringScan:
    """Count the next elements as long as they have the length of the first one."""
    import numpy as np  # imported late: see `protocol.numpy_types`

    count, position = scan
    rest = len(view) - position
    if rest < _PREFIX:
        return scan
    first = view[position : position + _PREFIX]
    stride = _PREFIX + int.from_bytes(first.tobytes(), "little")
    most = min(rest // stride, limit - count, _EQUAL_PER_STEP)
    if most < _MIN_RUN:
        return scan
    lengths = np.ndarray((most,), np.dtype("<u4"), view, position, (stride,))
    differs = lengths != lengths[0]
    run = int(differs.argmax())
    if not differs[run]:
        run = most
    return StringScan(count + run, position + run * stride)


def _short_texts(view: np.ndarray[Any, np.dtype[np.uint8]], scan: StringScan, limit: int) -> StringScan:
    """Count the next elements as long as they are short, as far as one window shows them."""
    import numpy as np  # imported late: see `protocol.numpy_types`

    count, position = scan
    window = view[position : position + _WINDOW]
    if len(window) < _MIN_RUN * _PREFIX or window[1] or window[2] or window[3]:
        return scan
    is_start = (window[1:-2] | window[2:-1] | window[3:]) == 0
    starts = np.flatnonzero(is_start)
    ends = starts + window[starts] + _PREFIX
    # Where each start is the end of the element before it, all starts are elements: the first is one. Places that are
    # no elements, and elements that are not short, are exceptions.
    exceptions = np.flatnonzero(starts[1:] != ends[:-1])
    if len(exceptions) * _MAX_EXCEPTIONS > len(starts):
        return scan
    lasts = np.append(exceptions, len(starts) - 1)  # the last elements of runs without an exception
    following = np.searchsorted(starts, ends[lasts])
    is_found = starts[np.minimum(following, len(starts) - 1)] == ends[lasts]
    wanted, rest = limit - count, len(view) - position
    found = first = last = 0
    for last, index, goes_on in zip(lasts.tolist(), following.tolist(), is_found.tolist(), strict=True):
        if last < first:
            continue  # a place within an element
        found += last - first + 1
        if found >= wanted:
            last -= found - wanted  # noqa: PLW2901 - the run is cut off
            found = wanted
            break
        if not goes_on:
            break
        first = index
    end = int(ends[last])
    if end > rest:  # only the last element can be incomplete
        return StringScan(count + found - 1, position + int(starts[last]))
    return StringScan(count + found, position + end)

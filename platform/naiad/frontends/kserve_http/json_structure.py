"""The structure of JSON, examined before it is parsed: how deeply it is nested, and how many objects it has.

Parsers recurse, so that deep nesting would exhaust their stack, and millions of objects their memory. Both are found
with numpy, in a fraction of the time that parsing takes. Brackets in strings do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from naiad.core.errors import InvalidRequestError

if TYPE_CHECKING:
    import numpy as np

MAX_DEPTH = 100
MAX_OBJECTS = 10_000
"""Objects of a request: two for each tensor, in a request that is well formed."""

_BACKSLASH, _QUOTE = b'\\"'
_FOLD = 0x20
"""The bit that distinguishes `{` from `[`, and `}` from `]`."""
_OPENING, _CLOSING = b"{}"
_FEW_QUOTES = 256
"""So many strings are cut out one by one, which for few of them is faster than looking at each byte."""
_CHUNK = 1 << 20
"""Bytes that are examined at once, so that what numpy needs meanwhile is bounded."""


def check_structure(text: bytes, *, max_objects: int | None = None) -> None:
    """Reject JSON that is nested too deeply, or has too many objects.

    Args:
        text: The JSON; where it is not valid, the result holds for the part that a parser reads.
        max_objects: How many objects are allowed; None for any number.

    Raises:
        InvalidRequestError: If it is nested deeper than 100 levels, or has more objects.
    """
    # Most JSON has few brackets, strings included, so that counting them is enough.
    objects = text.count(b"{")
    has_many_objects = max_objects is not None and objects > max_objects
    if not has_many_objects and objects + text.count(b"[") <= MAX_DEPTH:
        return
    objects = depth = 0
    is_in_string = False
    start = 0
    while start < len(text):
        end = _chunk_end(text, start)
        changes, is_in_string = _changes_outside_strings(text[start:end], is_in_string=is_in_string)
        depths = changes[changes != 0].cumsum(dtype="int32")
        if len(depths) and depth + int(depths.max()) > MAX_DEPTH:
            raise InvalidRequestError(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")
        depth += int(depths[-1]) if len(depths) else 0
        if has_many_objects:
            objects += _opened_objects(text[start:end], changes)
            if max_objects is not None and objects > max_objects:
                raise InvalidRequestError(
                    f"cannot use the request JSON: it has more than {max_objects} objects; an inference request has "
                    "two for each tensor"
                )
        start = end


def _chunk_end(text: bytes, start: int) -> int:
    """Where a chunk ends: not behind a backslash, whose effect on the next byte depends on those before it."""
    end = min(start + _CHUNK, len(text))
    while end < len(text) and text[end - 1] == _BACKSLASH:
        end += 1
    return end


def _changes_outside_strings(chunk: bytes, *, is_in_string: bool) -> tuple[np.ndarray[Any, np.dtype[np.int8]], bool]:
    """The change of depth at each byte, zero within strings; and whether the chunk ends within a string."""
    import numpy as np  # imported late: see `protocol.numpy_types`

    codes = np.frombuffer(chunk, np.uint8)
    folded = codes | _FOLD
    changes = (folded == _OPENING).view(np.int8) - (folded == _CLOSING).view(np.int8)
    is_quote = codes == _QUOTE
    if _BACKSLASH in chunk:
        _clear_escaped(is_quote, codes)
    quotes = np.flatnonzero(is_quote).tolist() if chunk.count(_QUOTE) <= _FEW_QUOTES else None
    if quotes is None:
        # The parity of the quotes so far says whether a byte is in a string. 8 bits that overflow keep it.
        parity = np.cumsum(is_quote, dtype=np.uint8) + np.uint8(is_in_string)
        parity &= 1
        changes *= (1 - parity).view(np.int8)
        return changes, bool(parity[-1])
    borders = [*([0] if is_in_string else []), *quotes]
    for begin, end in zip(borders[::2], [*borders[1::2], len(chunk)], strict=False):
        changes[begin:end] = 0
    return changes, bool(len(borders) % 2)


def _clear_escaped(is_quote: np.ndarray[Any, np.dtype[np.bool_]], codes: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Clear the quotes that follow an odd number of backslashes."""
    import numpy as np  # imported late: see `protocol.numpy_types`

    quotes = np.flatnonzero(is_quote)
    suspects = quotes[codes[quotes - 1] == _BACKSLASH]
    if not len(suspects):
        return
    others = np.flatnonzero(codes != _BACKSLASH)
    # The last byte before each quote that is not a backslash. A chunk begins behind such a byte, or with it.
    before = np.searchsorted(others, suspects) - 1
    last_others = np.where(before < 0, -1, others[before])
    is_quote[suspects[(suspects - last_others) % 2 == 0]] = False


def _opened_objects(chunk: bytes, changes: np.ndarray[Any, np.dtype[np.int8]]) -> int:
    import numpy as np  # imported late: see `protocol.numpy_types`

    return int(np.count_nonzero((np.frombuffer(chunk, np.uint8) == ord("{")) & (changes > 0)))

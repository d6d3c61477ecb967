"""The structure of JSON, examined before it is parsed: how deeply it is nested, and how many objects it has.

Parsers recurse, so that deep nesting would exhaust their stack, and millions of objects their memory. Both are found
in a fraction of the time that parsing takes, in what is left of the text without strings and without other bytes than
brackets.
"""

from __future__ import annotations

from naiad.core.errors import InvalidRequestError

MAX_DEPTH = 100
MAX_OBJECTS = 10_000  # objects of a request: two for each tensor, in a request that is well formed

_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS + b'"'))
_OPENING_BIT = 0x02  # the bit that `[` and `{` have, and `]` and `}` do not
_CHUNK = 1 << 20  # brackets that are added up at once, so that what numpy needs meanwhile is bounded


def check_structure(text: bytes, *, max_objects: int | None = None) -> None:
    """Reject JSON that is nested deeper than 100 levels, or has more than *max_objects* objects.

    Where it is not valid, the result holds for the part that a parser reads.
    """
    # Most JSON has few brackets, strings included, so that counting them is enough.
    objects = text.count(b"{")
    has_many_objects = max_objects is not None and objects > max_objects
    if not has_many_objects and objects + text.count(b"[") <= MAX_DEPTH:
        return
    import numpy as np  # imported late: see `protocol.numpy_types`

    # Without escaped quotes, every other part between quotes is a string. Backslashes are in strings alone. Of strings
    # without brackets, which most are, two quotes are left, which are removed: no other quote changes its part.
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = text.translate(None, _OTHERS).replace(b'""', b"").split(b'"')[::2]
    brackets = b"".join(outside)
    depth = 0
    for start in range(0, len(brackets), _CHUNK):
        codes = np.frombuffer(brackets[start : start + _CHUNK], np.uint8)
        depths = ((codes & _OPENING_BIT).view(np.int8) - 1).cumsum(dtype="int32")
        if depth + int(depths.max()) > MAX_DEPTH:
            raise InvalidRequestError(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")
        depth += int(depths[-1])
    if max_objects is not None and brackets.count(b"{") > max_objects:
        raise InvalidRequestError(
            f"cannot use the request JSON: it has more than {max_objects} objects; an inference request has two for "
            "each tensor"
        )

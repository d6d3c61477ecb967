"""What a backend holds in place of pointers to the server's objects: numbers, checked at each use.

The API's types are opaque, so a backend only passes them back. A handle has a number for the kind of object and a
serial number that is never used again. So a handle that was released, sent or deleted, or one of another kind, is
recognised: the call returns an error of the API, and no memory is touched. Handles are not addresses that a process can
map, so a backend that follows one crashes at once, where its mistake is.
"""

from __future__ import annotations

import itertools
from typing import Dict, TypeVar

from naiad_stub.native.errors import INVALID_ARG, DeadHandleError

T = TypeVar("T")

_KIND_SHIFT = 48
_MARK = 0x4E00 << _KIND_SHIFT  # not a canonical address on x86-64, and none of a process on aarch64

_kinds: Dict[int, str] = {}


def describe(handle: int) -> str:
    """What a handle is, for error texts."""
    if not handle:
        return "a null pointer"
    kind = _kinds.get(handle >> _KIND_SHIFT)
    return f"{handle:#x}" if kind is None else f"{kind} {handle & (1 << _KIND_SHIFT) - 1}"


class HandleTable(Dict[int, T]):
    """The live objects of one kind by their handles. Each method may be called on any thread.

    Attributes:
        kind: The API's name of the type.
    """

    __slots__ = ("_base", "_serials", "kind")

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        number = len(_kinds) + 1
        _kinds[_MARK >> _KIND_SHIFT | number] = kind
        self._base = _MARK | number << _KIND_SHIFT
        self._serials = itertools.count(1)

    def add(self, value: T) -> int:
        """Make *value* a live object; return its handle."""
        handle = self._base | next(self._serials)
        self[handle] = value
        return handle

    def remove(self, handle: int) -> T:
        """End the life of an object, and return it.

        Raises:
            DeadHandleError: If the object does not exist.
        """
        try:
            return self.pop(handle)
        except KeyError:
            return self[handle]

    def __missing__(self, handle: int) -> T:
        hint = ": it was released, sent or deleted before" if handle & ~((1 << _KIND_SHIFT) - 1) == self._base else ""
        raise DeadHandleError(INVALID_ARG, f"{describe(handle)} is not a live {self.kind}{hint}")

"""JSON documents whose long strings and lists grew piece by piece: each piece is encoded once, and none is joined.

A text of 100 MB as a Python string would be copied for each piece that is added to it, and again when it is encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from naiad.protocol.inference import Buffer

_CHUNK = 1 << 16
_MARK = b"\0"  # stands for a growing value in a document. JSON has no such byte: it is escaped in strings


class GrownJson:
    """A string or a list that grows, as its JSON."""

    __slots__ = ("_chunks", "_ends", "size")

    def __init__(self, begin: Sequence[Any]) -> None:
        """A string if *begin* is one, else a list."""
        self._ends = b'""' if isinstance(begin, str) else b"[]"
        self._chunks: list[bytearray] = []
        self.size = 0  # bytes of its JSON, without quotes or brackets
        self.add(begin)

    def __bool__(self) -> bool:
        return bool(self.size)

    def add(self, value: Sequence[Any]) -> None:
        if not value:
            return
        data = memoryview(orjson.dumps(value))[1:-1]
        between = self._between
        self.size += len(between) + len(data)
        if not self._chunks or len(self._chunks[-1]) >= _CHUNK:
            self._chunks.append(bytearray())
        self._chunks[-1] += between
        self._chunks[-1] += data

    def joined(self, *others: GrownJson) -> GrownJson:
        """This and others as one; none of them must grow any more."""
        whole = GrownJson("" if self._ends == b'""' else [])
        for one in filter(None, (self, *others)):
            between = whole._between
            whole._chunks += filter(None, (bytearray(between), *one._chunks))  # noqa: SLF001 - of this class
            whole.size += len(between) + one.size
        return whole

    def parts(self) -> list[Buffer]:
        """Its JSON. It must not grow while these are in use."""
        return [self._ends[:1], *self._chunks, self._ends[1:]]

    @property
    def _between(self) -> bytes:
        return b"," if self.size and self._ends == b"[]" else b""


def dump_parts(document: Any) -> list[Buffer]:
    """The JSON of a document in which growing values may be."""
    grown: list[GrownJson] = []

    def default(value: Any) -> orjson.Fragment:
        if not isinstance(value, GrownJson):
            raise TypeError
        grown.append(value)
        return orjson.Fragment(_MARK)

    between = orjson.dumps(document, default=default).split(_MARK)
    parts: list[Buffer] = [between[0]]
    for value, rest in zip(grown, between[1:], strict=True):
        parts += value.parts()
        parts.append(rest)
    return parts


def dumps(document: Any) -> bytes:
    """As `dump_parts`, joined."""
    return b"".join(dump_parts(document))

"""JSON documents whose long strings and lists grew piece by piece: each piece is encoded once, and none is joined.

A text of 100 MB as a Python string would be copied for each piece that is added to it, and again when it is encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from naiad.protocol.inference import Buffer

_CHUNK = 1 << 16
_MARK = b"\0"  # stands for a growing value in a document. JSON has no such byte: it is escaped in strings


class _Chunks:
    """Bytes that grow."""

    __slots__ = ("_chunks", "size")

    def __init__(self) -> None:
        self._chunks: list[bytearray] = []
        self.size = 0

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._chunks)

    def add(self, data: Buffer) -> None:
        self.size += len(data)
        if self._chunks and len(self._chunks[-1]) < _CHUNK:
            self._chunks[-1] += data
        else:
            self._chunks.append(bytearray(data))

    def extend(self, other: _Chunks) -> None:
        """Append the bytes of others, which must not grow any more."""
        self._chunks += other._chunks
        self.size += other.size


class JsonText:
    """A string that grows, as its JSON."""

    __slots__ = ("_inner",)

    def __init__(self, text: str = "") -> None:
        self._inner = _Chunks()
        self.add(text)

    def __bool__(self) -> bool:
        return bool(self._inner.size)

    @classmethod
    def joined(cls, texts: Iterable[JsonText]) -> JsonText:
        """These strings as one; none of them must grow any more."""
        whole = cls()
        for text in texts:
            whole._inner.extend(text._inner)  # noqa: SLF001 - of this class
        return whole

    @property
    def size(self) -> int:
        """Bytes of its JSON, without quotes."""
        return self._inner.size

    def add(self, text: str) -> None:
        if text:
            self._inner.add(memoryview(orjson.dumps(text))[1:-1])

    def parts(self) -> list[Buffer]:
        """Its JSON. It must not grow while these are in use."""
        return [b'"', *self._inner, b'"']


class JsonList:
    """A list that grows, as its JSON."""

    __slots__ = ("_inner",)

    def __init__(self) -> None:
        self._inner = _Chunks()

    @property
    def size(self) -> int:
        """Bytes of its JSON, without brackets."""
        return self._inner.size

    def add(self, values: Sequence[Any]) -> None:
        if values:
            if self.size:
                self._inner.add(b",")
            self._inner.add(memoryview(orjson.dumps(values))[1:-1])

    def after(self, values: Sequence[Any]) -> JsonList:
        """This list behind *values*; it must not grow any more."""
        whole = JsonList()
        whole.add(values)
        if whole.size and self.size:
            whole._inner.add(b",")
        whole._inner.extend(self._inner)
        return whole

    def parts(self) -> list[Buffer]:
        """As `JsonText.parts`."""
        return [b"[", *self._inner, b"]"]


def dump_parts(document: Any) -> list[Buffer]:
    """The JSON of a document in which growing values may be."""
    grown: list[JsonText | JsonList] = []

    def default(value: Any) -> orjson.Fragment:
        if not isinstance(value, JsonText | JsonList):
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

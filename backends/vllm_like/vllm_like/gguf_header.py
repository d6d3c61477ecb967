"""Reads the header of a GGUF file: sizes of the model that need no engine (github.com/ggml-org/ggml, docs/gguf.md)."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO, Dict, NamedTuple, Optional

MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_LENGTH = 1 << 28  # bytes of a string and elements of an array: larger numbers are from a damaged file
_MAX_DIMENSIONS = 8


class Header(NamedTuple):
    """Sizes of a model."""

    size: int  # bytes of the file
    context_length: Optional[int]  # tokens that the model was trained with; None if the file does not say it
    cache_numbers: int  # numbers that the cache has for each token; 0 if unknown
    vocabulary: int = 0  # number of tokens that the model knows
    weights: int = 0  # number of numbers in its tensors


def read(path: Path) -> Header:
    """The header of a file; `ValueError` if it is not GGUF, damaged, or shorter than its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ValueError(f"'{path}' is not a GGUF file, which the engine xllamacpp needs")
        try:
            values, end, weights = _read(file)
        except (struct.error, ValueError, KeyError, UnicodeDecodeError):
            raise ValueError(f"'{path}' is damaged or incomplete: its GGUF header cannot be read") from None
    if size <= end:
        raise ValueError(f"'{path}' is incomplete: it has {size} bytes, and its last tensor begins at byte {end}")
    return _header(values, size, weights)


def _read(file: BinaryIO) -> Any:
    """The values of the header, with ranges in place of arrays, where the last tensor begins, and how many weights."""
    _version, tensors, count = _number(file, "<I"), _number(file, "<Q"), _number(file, "<Q")
    values: Dict[str, Any] = {}
    for _ in range(count):
        name = _string(file).decode("utf-8")
        values[name] = _value(file, _number(file, "<I"))
    last = weights = 0
    for _ in range(tensors):
        _string(file)
        dimensions = _number(file, "<I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError
        weights += math.prod(_number(file, "<Q") for _ in range(dimensions))
        file.seek(4, 1)
        last = max(last, _number(file, "<Q"))
    return values, file.tell() + last, weights


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _string(file: BinaryIO) -> bytes:
    length = _number(file, "<Q")
    content = file.read(length) if length <= _MAX_LENGTH else b""
    if len(content) != length:
        raise ValueError
    return content


def _value(file: BinaryIO, kind: int) -> Any:
    """A value; of an array, whose elements are skipped, a range as long as it."""
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _number(file, _SCALARS[kind])
    inner, count = _number(file, "<I"), _number(file, "<Q")
    if count > _MAX_LENGTH:
        raise ValueError
    if inner in _SCALARS:
        file.seek(count * struct.calcsize(_SCALARS[inner]), 1)
    else:
        for _ in range(count):
            _value(file, inner)
    return range(count)


def _header(values: Dict[str, Any], size: int, weights: int) -> Header:
    kind = values.get("general.architecture")
    name = kind.decode("utf-8", "replace") if isinstance(kind, bytes) else ""

    def number(key: str, default: int = 0) -> int:
        found = values.get(f"{name}.{key}")
        return found if isinstance(found, int) else default

    heads = number("attention.head_count")
    per_head = number("embedding_length") // heads if heads else 0
    width = number("attention.key_length", per_head) + number("attention.value_length", per_head)
    cache = number("block_count") * number("attention.head_count_kv", heads) * width
    tokens = values.get("tokenizer.ggml.tokens")
    vocabulary = len(tokens) if isinstance(tokens, range) else 0
    return Header(size, number("context_length") or None, cache, vocabulary, weights)

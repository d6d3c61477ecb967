"""Bytearrays that use memory as it is written."""

from __future__ import annotations

import psutil
import pytest

from naiad.frontends.growing_bytes import new_bytes, resize_bytes

GIB = 1 << 30


def resident() -> int:
    return psutil.Process().memory_info().rss


def test_memory_is_used_as_it_is_written():
    before = resident()
    data = new_bytes(GIB)
    assert isinstance(data, bytearray)
    assert len(data) == GIB
    data[: 1 << 20] = bytes(range(256)) * 4096
    resize_bytes(data, 2 * GIB)
    assert len(data) == 2 * GIB
    assert data[: 1 << 20] == bytes(range(256)) * 4096
    assert resident() - before < 16 << 20
    resize_bytes(data, 256)
    assert data == bytes(range(256))
    assert resident() - before < 16 << 20


def test_a_referenced_buffer_is_not_resized():
    data = new_bytes(100)
    with memoryview(data), pytest.raises(BufferError):
        resize_bytes(data, 200_000)


def test_a_refusal_is_an_error():
    with pytest.raises(MemoryError):
        new_bytes(1 << 62)

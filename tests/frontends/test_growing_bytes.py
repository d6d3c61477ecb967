"""Bytearrays that use memory as it is written."""

from __future__ import annotations

import gc
import threading

import psutil
import pytest
from support.waiting import until

from naiad.core import heap
from naiad.frontends.body_buffers import BodyBuffers
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


MIB = 1 << 20


def of_message() -> memoryview:
    return memoryview(new_bytes(64 * MIB))


def of_body() -> memoryview:
    buffer = BodyBuffers().take(MIB, 64 * MIB)
    buffer.append(64 * MIB - 1, b"x")
    return buffer.first(64 * MIB)


@pytest.mark.parametrize("make", [of_message, of_body])
def test_long_memory_is_returned_by_a_thread_once_nothing_refers_to_it(make, monkeypatch):
    threads: list[int] = []
    discard = heap._discard

    def noted(memory) -> None:
        threads.append(threading.get_ident())
        discard(memory)

    monkeypatch.setattr(heap, "_discard", noted)
    whole = make()
    whole[::4096] = bytes(len(whole[::4096]))
    whole[-5:] = b"bytes"
    end = whole[-5:]
    filled = resident()
    del whole
    gc.collect()
    assert not threads
    assert bytes(end) == b"bytes", "a part that is referred to stays"
    del end
    until(lambda: resident() < filled - 48 * MIB, "the memory to be returned")
    assert threads
    assert threading.get_ident() not in threads

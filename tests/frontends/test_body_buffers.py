"""Buffers that grow with what arrives and are used again."""

from __future__ import annotations

import psutil

from naiad.frontends.body_buffers import BodyBuffers

MIB = 1 << 20


def resident() -> int:
    return psutil.Process().memory_info().rss


def test_a_buffer_grows_with_what_is_in_it_and_keeps_its_bytes():
    buffer = BodyBuffers().take(64 * MIB, 64 * MIB)
    data = bytes(range(256)) * 4096
    before = resident()
    assert len(buffer.map) < MIB
    for filled in range(0, 8 * MIB, MIB):
        buffer.append(filled, data)
    assert buffer.first(8 * MIB) == data * 8
    assert resident() - before < 32 * MIB  # the interpreter has a heap of its own


def test_a_buffer_grows_while_something_refers_to_it():
    buffer = BodyBuffers().take(MIB, MIB)
    buffer.append(0, b"first")
    held = buffer.first(5)
    buffer.append(MIB - 1, b"x")
    assert buffer.first(5) == held == b"first"


def test_a_kept_buffer_is_taken_for_bodies_of_about_its_size():
    buffers = BodyBuffers()
    buffer = buffers.take(4 * MIB, 4 * MIB)
    buffer.append(0, bytes(4 * MIB))
    kept = id(buffer.map)
    buffer.release()
    buffers.keep(buffer.map, 4 * MIB)
    del buffer
    assert id(buffers.take(200_000, 200_000).map) != kept, "a small body would hold much memory"
    taken = buffers.take(2 * MIB, 2 * MIB)
    assert id(taken.map) == kept
    assert taken.touched == 4 * MIB
    assert buffers.kept_size == 0


def test_a_buffer_that_is_referred_to_is_not_taken():
    buffers = BodyBuffers()
    buffer = buffers.take(MIB, MIB)
    tensor = buffer.first(100)
    kept = buffer.map
    buffer.release()
    buffers.keep(kept, MIB)
    assert buffers.take(MIB, MIB).map is not kept
    assert len(tensor) == 100


def test_kept_buffers_are_bounded_and_freed_when_idle():
    asked = []
    buffers = BodyBuffers(lambda: asked.append(1))
    for _ in range(10):
        buffer = buffers.take(16 * MIB, 16 * MIB)
        buffer.append(16 * MIB - 1, b"x")
        buffer.release()
        buffers.keep(buffer.map, 16 * MIB)
        taken = [buffers.take(16 * MIB, 16 * MIB) for _ in range(2)]
        for each in taken:
            each.append(16 * MIB - 1, b"x")
            each.release()
            buffers.keep(each.map, 16 * MIB)
    assert asked
    assert buffers.kept_size <= 64 * MIB
    while buffers.on_tick():
        pass
    assert buffers.kept_size == 0

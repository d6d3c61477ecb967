"""What a backend and the guest both see: values at addresses, and the bytes of tensors."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from naiad_stub.native import memory

ROOM = 64


@pytest.fixture(params=range(8), ids="{} bytes beyond a word".format)
def place(request):
    """The address of zeros within a buffer of 0xFF, also one that is not aligned; and what is there and around it."""
    buffer = ctypes.create_string_buffer(b"\xff" * ROOM, ROOM)
    start = -ctypes.addressof(buffer) % 8 + 8 + request.param

    def look(size: int) -> bytes:
        data = buffer.raw
        assert data[:start] + data[start + size :] == b"\xff" * (ROOM - size)
        return data[start : start + size]

    return ctypes.addressof(buffer) + start, look


@pytest.mark.parametrize(
    ("write", "value", "written"),
    [
        (memory.set_uint64, 1 << 63 | 5, (1 << 63 | 5).to_bytes(8, "little")),
        (memory.set_uint64, -2, b"\xfe" + b"\xff" * 7),
        (memory.set_int64, -2, b"\xfe" + b"\xff" * 7),
        (memory.set_uint32, 0x12345678, b"\x78\x56\x34\x12"),
        (memory.set_uint32, -1, b"\xff" * 4),
        (memory.set_bool, True, b"\x01"),
        (memory.set_bool, 0, b"\x00"),
        (memory.set_double, 1.5, np.float64(1.5).tobytes()),
    ],
)
def test_a_value_is_written_with_its_size_at_any_address(place, write, value, written):
    address, look = place
    write(address, value)
    assert look(len(written)) == written


@pytest.mark.parametrize(
    "write", [memory.set_uint64, memory.set_int64, memory.set_uint32, memory.set_bool, memory.set_double]
)
def test_nothing_is_written_to_a_null_pointer(write):
    write(0, 1)


def test_numbers_are_read_at_any_address(place):
    address, _ = place
    for position, value in enumerate((-1, 1 << 62, 3)):
        memory.set_int64(address + 8 * position, value)
    assert memory.read_int64s(address, 3) == (-1, 1 << 62, 3)
    assert memory.read_int64s(address, 0) == memory.read_int64s(0, 0) == ()
    assert memory.read_int64(address) == -1
    assert memory.read_bool(address)
    memory.set_bool(address, False)
    assert not memory.read_bool(address)


@pytest.mark.parametrize("make", [bytearray, lambda data: mmap.mmap(-1, len(data)), lambda data: np.array(list(data))])
def test_the_address_of_a_view_is_that_of_its_first_byte(make):
    """Also of a view of a view, and whether or not the guest knows how Python keeps views."""
    view = memoryview(make(bytes(16))).cast("B")[8:]
    view[:4] = b"abcd"
    for part, content in ((view, b"abcd"), (view[2:4], b"cd")):
        assert ctypes.string_at(memory.address_of(part), len(content)) == content


def test_the_address_of_a_view_is_asked_of_ctypes_where_python_keeps_views_in_another_way(monkeypatch):
    assert memory._POINTER_AT
    view = memoryview(bytearray(b"abcd"))[1:]
    known = memory.address_of(view)
    monkeypatch.setattr(memory, "_POINTER_AT", 0)
    assert memory.address_of(view) == known


def test_a_buffer_without_bytes_has_an_address():
    assert memory.address_of(memoryview(bytearray()))


@pytest.mark.parametrize("size", [0, 1, 2, 100])
def test_new_bytes_are_zeros_of_their_own_that_a_backend_can_write(size):
    """Python has one object for all equal `bytes` of up to one byte: written to, it would change everywhere."""
    first, second = memory.new_bytes(size), memory.new_bytes(size)
    assert bytes(first) == bytes(size)
    ctypes.memset(memory.address_in(first), 7, size)
    assert bytes(first) == b"\x07" * size
    assert bytes(second) == bytes(size)
    assert (bytes(1), b"".join([first])) == (b"\x00", b"\x07" * size)

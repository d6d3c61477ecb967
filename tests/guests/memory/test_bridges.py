"""Bridges as the host and a guest see them, over real sockets and real memory."""

from __future__ import annotations

import gc
import socket
import struct
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from naiad_stub import wire
from naiad_stub.bridges import Bridges
from naiad_stub.messages import TO_ANY_THREAD, CloseBridge, OpenBridge, UseBridge, unpack
from naiad_stub.wire import BRIDGE_OFFSETS, BRIDGE_SHIFT

from naiad.core.errors import ProtocolError
from naiad.guests.memory.bridges import Bridge, owner_of
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.tensors import TensorLayout, copy_or_borrow
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InputTensor

SIZE = 300_000


class Guest:
    """Both ends of one guest: what the host has of it, and its own bridges."""

    def __init__(self, name: str, load: int) -> None:
        self.memory = InstanceMemory(name, capacity=1 << 28)
        self.bridges = self.memory.bridges
        self.host_end, self.guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.host_end.setblocking(False)
        self.handlers: dict[int, object] = {}
        self.posted: list[bytes] = []
        channel = SimpleNamespace(add_handler=self._add_handler, post=self.posted.append)
        self.own = Bridges(self.guest_end, channel)
        self.sent: list[object] = []
        self.bridges.start(load, self.host_end, self._receive)

    def _add_handler(self, message_class, handler) -> None:
        self.handlers[message_class.kind] = handler

    def _receive(self, frame: bytes) -> None:
        kind = wire.FRAME.unpack_from(frame)[1]
        message = unpack(TO_ANY_THREAD, kind, frame[wire.FRAME.size :])
        self.sent.append(message)
        self.handlers[kind](message)

    def acknowledge(self) -> None:
        """Pass on what the guest has said to the host."""
        for frame in self.posted:
            (number,) = struct.unpack_from("<Q", frame, wire.FRAME.size)
            self.bridges.on_opened(number)
        self.posted.clear()

    def close(self) -> None:
        self.memory.close()
        self.guest_end.close()
        for segment in (*self.own._written.values(), *self.own._read.values()):
            segment.close()


def descriptors() -> int:
    gc.collect()  # files that other tests have left in cycles do not count
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def guests():
    made = []

    def make(name: str, load: int) -> Guest:
        made.append(Guest(name, load))
        return made[-1]

    before = descriptors()
    yield make
    for guest in made:
        guest.close()
    assert descriptors() == before


def layout(*sizes: int) -> TensorLayout:
    entries, at = [], 0
    for number, size in enumerate(sizes):
        entries.append((f"T{number}", Datatype.UINT8, (size,), at, at + size))
        at += size + -size % 64
    return TensorLayout(entries, entries[-1][4])


def write(guest: Guest, number: int, sizes: tuple[int, ...] = (SIZE,)) -> list[InputTensor]:
    """Tensors that a guest has written to one of its bridges, as the host gets them."""
    made = layout(*sizes)
    block, view, at = guest.own.allocate(number, made.end)
    for index, (*_, start, end) in enumerate(made.entries):
        view[at + start : at + end] = bytes([index + 1]) * (end - start)
    buffers = copy_or_borrow([block], made, guest.memory, "it", apart=False)
    return [InputTensor(f"T{index}", Datatype.UINT8, (len(each),), each) for index, each in enumerate(buffers)]


def from_segment(guest: Guest) -> list[InputTensor]:
    """A tensor that a guest has written to its output segment."""
    (data,) = copy_or_borrow([0], layout(SIZE), guest.memory, "it", apart=False)
    return [InputTensor("T0", Datatype.UINT8, (SIZE,), data)]


def connect(writer: Guest, reader: Guest, model: str = "") -> int:
    """Have a tensor go from *writer* to *reader* by a copy, and then one through the bridge; its number."""
    assert reader.bridges.place_of(from_segment(writer), [0], model, -1) is None
    number = writer.bridges.to_reader(reader.bridges.load)
    assert reader.bridges.place_of(write(writer, number), [0]) is None
    reader.acknowledge()
    return number


def test_a_tensor_is_read_where_it_was_written_once_both_guests_have_mapped_the_bridge(guests):
    writer, reader = guests("writer", 1), guests("reader", 2)
    number = connect(writer, reader)
    tensors = write(writer, number, (SIZE, 10, 1000))
    place = reader.bridges.place_of(tensors, [0, 300_032, 300_096])
    assert place.start >> BRIDGE_SHIFT == number
    start = place.start & BRIDGE_OFFSETS
    view = reader.own.view(number)
    assert bytes(view[start : start + SIZE]) == b"\1" * SIZE
    assert bytes(view[start + 300_032 :][:10]) == b"\2" * 10
    assert reader.bridges.place_of(tensors[1:], [0, 64]).start == place.start + 300_032
    del view


def test_a_block_is_the_writers_again_when_nothing_refers_to_it(guests):
    writer, reader = guests("writer", 1), guests("reader", 2)
    number = connect(writer, reader)
    writer.memory.released.clear()
    tensors = write(writer, number)
    place = reader.bridges.place_of(tensors, [0])
    assert reader.bridges.hold(place)
    assert not reader.bridges.hold(place)
    block = place.start
    del tensors, place
    assert not writer.memory.released
    reader.memory.release_input(block)
    assert list(writer.memory.released) == [block]
    assert writer.memory.has_large_released
    writer.own.release(block)
    assert writer.own.allocate(number, SIZE)[0] == block
    writer.own.release(1 << 60 | 5)  # of a bridge that is closed


def test_tensors_that_are_laid_out_in_another_way_are_copied(guests):
    writer, reader = guests("writer", 1), guests("reader", 2)
    number = connect(writer, reader)
    assert reader.bridges.place_of(write(writer, number), [1]) is None
    assert reader.bridges.place_of(write(writer, number, (SIZE, SIZE)), [0, 300_096]) is None


def test_tensors_of_several_blocks_or_in_another_order_are_copied(guests):
    writer, reader = guests("writer", 1), guests("reader", 2)
    number = connect(writer, reader)
    first, second = write(writer, number), write(writer, number)
    assert reader.bridges.place_of(first + second, [0, SIZE + -SIZE % 64]) is None
    both = write(writer, number, (SIZE, SIZE))
    assert reader.bridges.place_of(both[::-1], [0, 300_032]) is None
    mixed = [both[0], InputTensor("T1", Datatype.UINT8, (3,), b"abc")]
    assert reader.bridges.place_of(mixed, [0, 300_032]) is None


def test_a_bridge_is_for_one_load_and_others_get_one_of_their_own(guests):
    writer, reader, other, twin = guests("writer", 1), guests("reader", 2), guests("other", 3), guests("twin", 2)
    number = connect(writer, reader)
    assert other.bridges.place_of(write(writer, number), [0]) is None
    assert writer.bridges.to_reader(3) not in {0, number}
    assert twin.bridges.place_of(write(writer, number), [0]) is None
    twin.acknowledge()
    assert twin.bridges.place_of(write(writer, number), [0]) is not None
    assert not any(isinstance(each, OpenBridge) for each in other.sent)


def test_a_caller_is_told_which_bridge_leads_to_the_model_it_calls(guests):
    writer, reader, newer = guests("writer", 1), guests("reader", 2), guests("newer", 3)
    assert writer.own.number_to("m", -1) == 0
    number = connect(writer, reader, "m")
    assert writer.own.number_to("m", -1) == number
    assert writer.own.number_to("m", 1) == 0
    assert newer.bridges.place_of(write(writer, number), [0], "m", -1) is None  # the model was loaded again
    assert writer.own.number_to("m", -1) == writer.bridges.to_reader(3) != number
    assert reader.bridges.place_of(from_segment(writer), [0], "m", -1) is None
    assert writer.own.number_to("m", -1) == number


def test_a_bridge_ends_with_its_last_reader_and_what_is_referred_to_stays(guests):
    writer, reader, twin = guests("writer", 1), guests("reader", 2), guests("twin", 2)
    number = connect(writer, reader, "m")
    connect(writer, twin)
    tensors = write(writer, number)
    reader.close()
    assert writer.bridges.to_reader(2) == number
    assert owner_of(tensors[0].data).number == number
    twin.close()
    assert writer.bridges.to_reader(2) == 0
    assert writer.sent[-1] == CloseBridge(number)
    assert writer.own.number_to("m", -1) == 0
    assert writer.own.allocate(number, 10) is None
    assert owner_of(tensors[0].data) is None
    assert bytes(tensors[0].data[:3]) == b"\1\1\1"


def test_a_bridge_ends_with_its_writer_and_its_readers_are_told(guests):
    writer, reader = guests("writer", 1), guests("reader", 2)
    number = connect(writer, reader)
    tensors = write(writer, number)
    place = reader.bridges.place_of(tensors, [0])
    writer.close()
    assert reader.sent[-1] == CloseBridge(number)
    assert reader.bridges.place_of(tensors, [0]) is None
    assert bytes(place.data[:3]) == b"\1\1\1"
    with pytest.raises(KeyError):
        reader.own.view(number)


@pytest.mark.parametrize("offset", [(4 << 30) - SIZE + 1, BRIDGE_OFFSETS])
def test_a_guest_that_names_bytes_outside_of_its_bridges_breaks_the_protocol(guests, offset):
    writer, reader = guests("writer", 1), guests("reader", 2)
    number = connect(writer, reader)
    for block in (number << BRIDGE_SHIFT | offset, (number + 1) << BRIDGE_SHIFT):
        with pytest.raises(ProtocolError, match="outside its segments"):
            copy_or_borrow([block], layout(SIZE), writer.memory, "it", apart=False)
    for apart in (True, False):
        with pytest.raises(ProtocolError):
            copy_or_borrow([number << BRIDGE_SHIFT] * 2, layout(SIZE, SIZE), writer.memory, "it", apart=apart)


def test_the_reader_of_a_bridge_cannot_send_blocks_of_it(guests):
    writer, reader = guests("writer", 1), guests("reader", 2)
    number = connect(writer, reader)
    with pytest.raises(ProtocolError, match="outside its segments"):
        copy_or_borrow([number << BRIDGE_SHIFT], layout(SIZE), reader.memory, "it", apart=False)


def test_a_guest_that_cannot_map_a_bridge_gets_copies(guests, monkeypatch):
    writer, reader = guests("writer", 1), guests("reader", 2)

    def refuse(*_: object) -> None:
        raise OSError("Cannot allocate memory")

    assert reader.bridges.place_of(from_segment(writer), [0]) is None
    number = writer.bridges.to_reader(2)
    monkeypatch.setattr("naiad_stub.bridges.Segment", refuse)
    for _ in range(2):
        assert reader.bridges.place_of(write(writer, number), [0]) is None
        reader.acknowledge()
    assert len([each for each in reader.sent if isinstance(each, OpenBridge)]) == 1


def test_guests_that_take_no_part_have_no_bridges(guests):
    writer, reader, limited = guests("writer", 1), guests("reader", 2), guests("limited", 0)
    assert limited.bridges.place_of(from_segment(writer), [0]) is None
    assert reader.bridges.place_of(from_segment(limited), [0]) is None
    assert not writer.bridges.written
    assert not limited.bridges.written


def test_a_guest_that_reads_nothing_more_is_offered_nothing(guests):
    """The socket for descriptors is full, or closed on the other side: the server must not block or fail."""
    writer, reader = guests("writer", 1), guests("reader", 2)
    writer.guest_end.close()
    assert reader.bridges.place_of(from_segment(writer), [0]) is None
    assert writer.bridges.to_reader(2) == 0
    assert not writer.sent


def test_the_number_of_bridges_of_a_guest_and_of_names_of_one_is_limited(guests):
    writer, reader = guests("writer", 1), guests("reader", 2)
    for number in range(100):
        writer.bridges.offer(2, f"m{number}", 1)
    assert len([each for each in writer.sent if isinstance(each, UseBridge)]) == 64
    for load in range(10, 110):
        writer.bridges.offer(load)
    assert len(writer.bridges.written) == 64
    assert isinstance(next(iter(writer.bridges.written.values())), Bridge)
    assert isinstance(writer.memory.released, deque)
    assert reader.bridges.to_reader(1) == 0

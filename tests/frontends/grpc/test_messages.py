"""Length-prefixed messages, read from the content of streams, and the pool of their buffers."""

from __future__ import annotations

import struct

import pytest

from naiad.frontends.grpc.messages import BufferPool, CompressedMessage, MessageError, MessageReader, with_prefix


def prefixed(message=b"", size=None):
    return struct.pack(">BL", 0, len(message) if size is None else size) + message


@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
def test_messages_of_any_size_are_read_directly_or_from_data(size):
    message = bytes(range(251)) * (size // 251 + 1)
    content = prefixed(message[:size]) * 2
    reader, pool = MessageReader("identity", BufferPool()), []
    found, position = [], 0
    while position < len(content):
        room = reader.get_buffer(30_000)
        if room is not None and position % 2:
            step = min(len(room), len(content) - position)
            room[:step] = content[position : position + step]
            room.release()
            found += reader.buffer_updated(step)
        else:
            step = min(9_973, len(content) - position)
            found += reader.feed(content, position, position + step)
        position += step
    assert [bytes(each) for each in found] == [message[:size]] * 2
    assert not reader.is_within_message
    assert not pool


class Places:
    """Has places for messages, and knows what it was asked."""

    def __init__(self, *, is_full=False):
        self.asked, self.given, self.is_full = [], [], is_full

    def reserve(self, head, size):
        self.asked.append((bytes(head[:4]), size))
        if self.is_full:
            return None
        self.given.append(bytearray(size))
        return memoryview(self.given[-1])


def read_in_steps(reader, content, step, direct=True):
    """The messages of *content*, *step* bytes at a time, and what of it was read to the reader's own buffers."""
    found, position, bypassed = [], 0, 0
    while position < len(content):
        room = reader.get_buffer(step) if direct else None
        if room is not None:
            size = min(len(room), len(content) - position)
            room[:size] = content[position : position + size]
            room.release()
            found += reader.buffer_updated(size)
            bypassed += size
        else:
            size = min(step, len(content) - position)
            found += reader.feed(content, position, position + size)
        position += size
    return found, bypassed


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("step", [4_000, 9_973, 100_000, 1_000_000])
def test_a_long_message_is_moved_to_its_place_once_an_eighth_of_it_has_arrived(step, direct):
    message, places = bytes(range(256)) * 4_000, Places()
    reader = MessageReader("identity", BufferPool(), is_single=True, reserve=places.reserve)
    (found,), bypassed = read_in_steps(reader, prefixed(message), step, direct)
    assert places.asked == [(message[:4], len(message))]
    assert found.obj is places.given[0]
    assert found == message
    assert bypassed >= len(message) - step - 5 if direct else not bypassed
    assert reader.longest == len(message)


def test_a_client_that_has_sent_a_long_message_gets_a_place_with_the_first_bytes_of_the_next():
    message, places, pool = b"0123" * 100_000, Places(), BufferPool()
    reader = MessageReader("identity", pool, reserve=places.reserve, longest=200_000)
    assert reader.feed(prefixed(message), 0, 5_000) == []
    assert len(places.given) == 1
    assert reader.held_size == 4_995
    assert reader.feed(prefixed(message), 5_000, len(message) + 5) == [message]


@pytest.mark.parametrize(
    ("size", "longest", "first", "flag", "is_full"),
    [
        pytest.param(100_000, 1 << 30, 90_000, 0, False, id="a message that is short"),
        pytest.param(1_000_000, 0, 100_000, 0, False, id="a client that has sent too little"),
        pytest.param(1_000_000, 1 << 30, 4_000, 0, False, id="a beginning that is too short"),
        pytest.param(1_000_000, 1 << 30, 90_000, 1, False, id="a message that is compressed"),
        pytest.param(40 << 20, 0, 6 << 20, 0, False, id="more than is copied at once"),
        pytest.param(1_000_000, 1 << 30, 90_000, 0, True, id="a method without a place"),
    ],
)
def test_other_messages_have_no_place_and_are_read_all_the_same(size, longest, first, flag, is_full):
    places = Places(is_full=is_full)
    reader = MessageReader("gzip", BufferPool(), reserve=places.reserve, longest=longest)
    content = struct.pack(">BL", flag, size) + bytes(size)
    assert reader.feed(content, 0, first) == []
    assert not places.given
    (message,) = reader.feed(content[:first] + b"x" * (size + 5 - first), first, size + 5)
    data = message.data if flag else message
    assert bytes(data[first - 5 - 3 : first - 5 + 3]) == b"\0\0\0xxx"
    assert len(places.asked) <= 1


def test_the_place_of_a_message_that_is_discarded_is_dropped():
    places = Places()
    reader = MessageReader("identity", BufferPool(), reserve=places.reserve, longest=1 << 20)
    reader.feed(prefixed(b"x" * 10_000, size=500_000), 0, 10_005)
    reader.discard()
    places.given[0].append(0)  # which CPython refuses while there are views


@pytest.mark.parametrize("cut", [0, 3, 5, 8, 9, 12])
def test_a_reader_of_one_message_ignores_what_follows(cut):
    """Also what is malformed, and wherever the content is cut."""
    reader = MessageReader("identity", BufferPool(), is_single=True)
    content = prefixed(b"only") + b"\xff" * 4_000
    assert reader.feed(content, 0, cut) + reader.feed(content, cut, len(content)) == [b"only"]
    assert not reader.is_within_message
    assert reader.get_buffer(100) is None


def test_a_discarded_message_is_freed():
    reader = MessageReader("identity", BufferPool())
    reader.feed(prefixed(b"x", size=100_000), 0, 6)
    reader.discard()
    assert (reader.held_size, reader.is_within_message, reader.get_buffer(100)) == (0, False, None)
    assert reader.feed(prefixed(b"next"), 0, 9) == []


def test_an_announced_size_alone_allocates_little():
    reader = MessageReader("identity", BufferPool())
    reader.feed(prefixed(b"x", size=2**31 - 1), 0, 6)
    assert reader.held_size <= 1 << 16


def test_a_buffer_is_used_again_once_it_has_no_views():
    pool, buffer = BufferPool(), bytearray(100_001)
    buffer.pop()
    view = memoryview(buffer)[5:10]
    pool.put(buffer)
    assert pool.take(100_000) is None
    pool.put(buffer)
    view.release()
    assert pool.take(99_999) is None
    assert pool.take(100_000) is buffer
    assert len(buffer) == 100_000
    assert pool.take(100_000) is None


def test_a_pool_is_bounded():
    pool = BufferPool()
    for _ in range(40):
        pool.put(bytearray(4 << 20))
    assert pool._size <= 1 << 26


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_messages_are_compressed_where_that_is_shorter(encoding):
    parts, size = with_prefix([b"x" * 1000, memoryview(bytes(1000))], 2000, encoding)
    assert size == len(b"".join(parts)) < 100
    (message,) = MessageReader(encoding, BufferPool()).feed(b"".join(parts), 0, size)
    assert message == CompressedMessage(b"".join(parts)[5:])
    short = with_prefix([b"abc"], 3, encoding)
    assert short == ([prefixed(size=3), b"abc"], 8)
    with pytest.raises(MessageError, match="the call has no grpc-encoding"):
        MessageReader("identity", BufferPool()).feed(b"".join(parts), 0, size)

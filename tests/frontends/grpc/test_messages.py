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

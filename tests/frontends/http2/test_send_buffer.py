"""Unsent data of a stream leaves in order, in frames, and completely."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.frontends.http2.frames import DATA, HEAD
from naiad.frontends.http2.send_buffer import SendBuffer


def contents(pieces):
    """The payloads of frames in a list of pieces."""
    data, found = b"".join(pieces), []
    while data:
        high, low, kind, flags, stream = HEAD.unpack_from(data)
        assert (kind, flags, stream) == (DATA, 0, 5)
        end = HEAD.size + (high << 8 | low)
        found.append(data[HEAD.size : end])
        data = data[end:]
    return found


@given(
    st.lists(st.lists(st.binary(max_size=40) | st.just(b"x" * 3000), max_size=4), max_size=6),
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
    st.integers(1, 30),
)
def test_messages_come_out_as_they_went_in(messages, windows, frame_size):
    buffer = SendBuffer()
    for number, parts in enumerate(messages):
        buffer.put(parts, sum(map(len, parts)), number)
    out, markers, after = b"", [], 0
    total = b"".join(b"".join(parts) for parts in messages)
    ends = [len(b"".join(b"".join(parts) for parts in messages[: n + 1])) for n in range(len(messages))]
    for window in (*windows, 100_000):
        pieces, size, ended = buffer.take(5, window, frame_size)
        found = contents(pieces)
        assert sum(map(len, found)) == size <= window
        assert all(0 < len(each) <= frame_size for each in found)
        out += b"".join(found)
        markers += ended
        after = len(out)
        assert markers == list(range(len(markers)))
        assert len(markers) == sum(end <= after for end in ends) if after else True
    assert (out, markers, buffer.size, bool(buffer)) == (total, list(range(len(messages))), 0, False)


@pytest.mark.parametrize("count", [3, 3000])
def test_views_of_any_type_and_shape_are_split_by_bytes(count):
    buffer = SendBuffer()
    array = np.arange(2 * count, dtype=np.float32).reshape(2, count)
    size = array.nbytes
    buffer.put([memoryview(array), memoryview(np.empty((0, 3)))], size)
    assert buffer.size == size
    taken = contents(buffer.take(5, 7, 100)[0]) + contents(buffer.take(5, size, 100)[0])
    assert b"".join(taken) == array.tobytes()


def test_long_parts_are_views_and_no_copies():
    buffer, big = SendBuffer(), bytearray(10_000)
    buffer.put([big], len(big))
    pieces, _, _ = buffer.take(5, 600, 300)
    big[0] = 7
    assert contents(pieces)[0][0] == 7


def test_the_memory_of_many_short_messages_is_more_than_their_content():
    buffer = SendBuffer()
    for number in range(100):
        buffer.put([b"prefix", b"content"], 13, number)
    assert buffer.size == 1300
    assert buffer.memory > 20_000
    buffer.take(5, 1300, 100)
    assert buffer.memory == 0

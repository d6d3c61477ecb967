"""Framing: whatever is framed comes back, however the socket cuts it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naiad_stub.messages import Failed, Log
from naiad_stub.wire import FRAME, MAX_TEXT, FrameReader, Kind, WireError, bounded_text, frame

FRAMES = st.tuples(st.integers(0, 2**16 - 1), st.binary(max_size=100))


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_frames_do_not_depend_on_where_the_socket_cuts_them(frames, data):
    stream = b"".join(frame(kind, payload) for kind, payload in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, found = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == frames


def test_frames_cut_at_every_byte_are_whole_again():
    stream = frame(Kind.LOG, b"a line") + frame(Kind.PROGRESS, b"") + frame(Kind.TRIM, b"12345678")
    reader, kinds = FrameReader(), []
    for position in range(len(stream)):
        kinds += [kind for kind, _ in reader.feed(stream[position : position + 1])]
    assert kinds == [Kind.LOG, Kind.PROGRESS, Kind.TRIM]


def test_long_frame_costs_no_more_than_its_length():
    """Joined anew with each piece, 48 MiB in pieces of 64 KiB would be eighteen gigabytes of copying."""
    payload, reader, frames = bytes(48 << 20), FrameReader(), []
    data = memoryview(frame(Kind.LOG, payload))
    begun = time.thread_time()
    for position in range(0, len(data), 1 << 16):
        frames += reader.feed(bytes(data[position : position + (1 << 16)]))
    assert [(kind, len(payload)) for kind, payload in frames] == [(Kind.LOG, 48 << 20)]
    assert time.thread_time() - begun < 1


def test_frame_longer_than_any_message_is_rejected_before_it_is_read():
    with pytest.raises(WireError, match="a message of 4294967295 bytes is longer than any the protocol has"):
        FrameReader().feed(FRAME.pack(2**32 - 1, Kind.LOG, 0))


def test_only_some_kinds_may_be_longer_than_others():
    reader = FrameReader(10, {Kind.QUERY: 20})
    assert reader.feed(frame(Kind.QUERY, bytes(20)) + frame(Kind.LOG, bytes(10))) == [
        (Kind.QUERY, bytes(20)),
        (Kind.LOG, bytes(10)),
    ]
    with pytest.raises(WireError, match="a message of 11 bytes"):
        FrameReader(10, {Kind.QUERY: 20}).feed(frame(Kind.LOG, bytes(11)))
    with pytest.raises(WireError, match="a message of 21 bytes"):
        FrameReader(10, {Kind.QUERY: 20}).feed(frame(Kind.QUERY, bytes(21)))


@pytest.mark.parametrize("more", [0, 1, 2000])
def test_a_long_text_loses_its_middle(more):
    text = "a" * (MAX_TEXT // 2) + "b" * more + "c" * (MAX_TEXT // 2)
    bounded = bounded_text(text)
    if not more:
        assert bounded == text
    else:
        note = f" ... [{more} characters are left out here] ... "
        assert bounded == "a" * (MAX_TEXT // 2) + note + "c" * (MAX_TEXT // 2)
        assert Log(0, "", 0, text).text == Failed(0, text, "").message == bounded

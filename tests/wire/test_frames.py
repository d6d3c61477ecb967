"""The protocol's rare messages and its framing: whatever is packed comes back, however the socket cuts it."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naiad_stub import wire
from naiad_stub.wire import FRAME, FrameReader, Kind, WireError, frame, pack, unpack

NUMBERS = st.integers(0, 2**64 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
FIELDS = {
    "u": NUMBERS,
    "s": TEXTS,
    "q": st.lists(NUMBERS, max_size=20),
    "m": st.dictionaries(TEXTS, TEXTS, max_size=5),
}
MESSAGES = st.sampled_from(sorted(wire.FIELDS)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.tuples(*[FIELDS[code] for code in wire.FIELDS[kind]]))
)


def payload_of(data: bytes) -> bytes:
    return data[FRAME.size :]


@given(MESSAGES)
def test_message_comes_back_as_it_was_packed(message):
    kind, fields = message
    [(found, payload)] = FrameReader().feed(pack(kind, *fields))
    assert (found, unpack(found, payload)) == (kind, fields)


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.data())
def test_frames_do_not_depend_on_where_the_socket_cuts_them(messages, data):
    stream = b"".join(pack(kind, *fields) for kind, fields in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, found = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert [(kind, unpack(kind, payload)) for kind, payload in found] == messages


def test_frames_cut_at_every_byte_are_whole_again():
    stream = pack(Kind.LOG, 1, "model.py", 7, "word") + pack(Kind.PROGRESS) + pack(Kind.RELEASE, [1, 2])
    reader, kinds = FrameReader(), []
    for position in range(len(stream)):
        kinds += [kind for kind, _ in reader.feed(stream[position : position + 1])]
    assert kinds == [Kind.LOG, Kind.PROGRESS, Kind.RELEASE]


def test_long_frame_costs_no_more_than_its_length():
    """Joined anew with each piece, 48 MiB in pieces of 64 KiB would be eighteen gigabytes of copying."""
    payload, reader, frames = bytes(48 << 20), FrameReader(), []
    data = memoryview(frame(Kind.LOG, payload))
    begun = time.thread_time()
    for position in range(0, len(data), 1 << 16):
        frames += reader.feed(bytes(data[position : position + (1 << 16)]))
    assert [(kind, len(payload)) for kind, payload in frames] == [(Kind.LOG, 48 << 20)]
    assert time.thread_time() - begun < 1


def test_frame_longer_than_any_message_is_refused_before_it_is_read():
    with pytest.raises(WireError, match="a message of 4294967295 bytes is longer than any the protocol has"):
        FrameReader().feed(FRAME.pack(2**32 - 1, Kind.LOG, 0))


@given(st.sampled_from([*wire.FIELDS, Kind.EXECUTE, Kind.RESPONSES, 0, 999]), st.binary(max_size=80))
@example(Kind.RELEASE, b"\xff\xff\xff\xff")
@example(Kind.LOAD, b"\xff\xff\xff\xff")
@example(Kind.COMPLETED, b"\xff\xff\xff\xff")
def test_nonsense_is_a_wire_error_and_nothing_else(kind, payload):
    with contextlib.suppress(WireError):
        unpack(kind, payload)


@given(MESSAGES, st.data())
def test_message_cut_short_or_too_long_is_refused(message, data):
    kind, fields = message
    payload = payload_of(pack(kind, *fields))
    with pytest.raises(WireError, match="bytes too many"):
        unpack(kind, payload + b"\0")
    if payload:
        with pytest.raises(WireError):
            unpack(kind, payload[: data.draw(st.integers(0, len(payload) - 1))])


@pytest.mark.parametrize(
    ("text", "arrives"),
    [("a\udcffb", "a\udcffb"), ("half \ud800 a pair", "half \\ud800 a pair"), ("nul \0", "nul \0")],
    ids=["bytes of a path", "lone surrogate", "nul"],
)
def test_text_that_is_no_utf8_can_be_sent(text, arrives):
    """A model may log anything; failing to say so would end its process."""
    assert unpack(Kind.COMPLETED, payload_of(pack(Kind.COMPLETED, text))) == (arrives,)

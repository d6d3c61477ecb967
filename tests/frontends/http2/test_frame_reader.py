"""Bytes to frames: the cuts between reads do not matter, and no bytes raise anything but a protocol error."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.turns import SHARE_SECONDS
from naiad.frontends.http2 import frames
from naiad.frontends.http2.frame_reader import Http2FrameReader
from naiad.frontends.http2.frames import ErrorCode, Http2ConnectionError, Http2StreamError
from naiad.frontends.http2.limits import Http2Limits

LIMITS = Http2Limits(frame_size=1 << 16, block_size=300, continuations=4)
PREFACE = frames.PREFACE + frames.settings(())


class Recorder:
    """Records frames. DATA is recorded once it is complete, however it was delivered."""

    def __init__(self) -> None:
        self.events: list[tuple] = []
        self._data: tuple[int, int, bool] = (0, 0, False)
        self._content = b""

    def on_preface(self):
        self.events.append(("preface",))

    def on_other_protocol(self):
        self.events.append(("other protocol",))

    def on_headers(self, number, block, ended):
        self.events.append(("headers", number, block, ended))
        if block == b"stream error":
            raise Http2StreamError(number, ErrorCode.CANCEL)

    def on_data(self, number, size, data, start, end, ended):
        self.events.append(("data", number, size, bytes(data[start:end]), ended))

    def on_data_begin(self, number, size, ended):
        self._data, self._content = (number, size, ended), b""

    def on_data_chunk(self, data, start, end, is_last):
        self._content += data[start:end]
        if is_last:
            number, size, ended = self._data
            self.events.append(("data", number, size, self._content, ended))

    def on_window_update(self, number, increment):
        self.events.append(("window update", number, increment))

    def on_reset(self, number):
        self.events.append(("reset", number))

    def on_settings(self, payload):
        self.events.append(("settings", payload))

    def on_ping(self, payload, *, is_ack):
        self.events.append(("ping", payload, is_ack))

    def on_ignored_frame(self):
        self.events.append(("ignored",))

    def on_stream_error(self, error):
        self.events.append(("stream error", error.stream, error.code))


def read(pieces):
    """What a reader makes of bytes that arrive in pieces, and the error that ends it."""
    recorder = Recorder()
    reader = Http2FrameReader(recorder, LIMITS, clock=lambda: 1.0)
    try:
        for piece in pieces:
            reader.feed(memoryview(piece))
    except Http2ConnectionError as error:
        recorder.events.append(("connection error", error.code, error.text))
    return recorder.events


def cut(data, places):
    bounds = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(bounds)]


CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)
NUMBERS = st.integers(0, 5)
FRAMES = st.one_of(
    st.builds(frames.frame, st.just(frames.DATA), st.sampled_from([0, 1, 8]), NUMBERS, st.binary(max_size=30)),
    # Longer than what is collected before it is delivered.
    st.builds(
        lambda flags, number, size: frames.frame(frames.DATA, flags, number, b"\1" * size),
        st.sampled_from([0, 1, 8]),
        NUMBERS,
        st.integers(16_000, 40_000),
    ),
    st.builds(
        frames.frame,
        st.sampled_from([frames.HEADERS, frames.HEADERS, frames.CONTINUATION]),
        st.sampled_from([0, 1, 4, 5, 5, 0x2C]),
        st.sampled_from([1, 3]),
        st.binary(max_size=30) | st.just(b"stream error"),
    ),
    st.builds(frames.frame, st.integers(2, 12), st.integers(0, 255), NUMBERS, st.binary(max_size=9)),
    st.builds(frames.ping, st.binary(min_size=8, max_size=8)),
    st.builds(frames.window_update, NUMBERS, st.integers(0, (1 << 31) - 1)),
)


@given(st.lists(FRAMES, max_size=8).map(b"".join), CUTS)
def test_the_same_bytes_give_the_same_frames_wherever_they_are_cut(data, cuts):
    whole = PREFACE + data
    assert read(cut(whole, cuts)) == read([whole])


@given(st.lists(FRAMES, max_size=3).map(b"".join))
def test_single_bytes_give_the_same_frames(data):
    whole = PREFACE + data[:3000]
    assert read([whole[at : at + 1] for at in range(len(whole))]) == read([whole])


@given(st.binary(max_size=2000), CUTS, st.booleans())
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(data, cuts, has_preface):
    read(cut(PREFACE + data if has_preface else data, cuts))


@given(st.lists(FRAMES, max_size=6).map(b"".join), CUTS, st.integers(0, 1 << 20), st.binary(max_size=9))
def test_damaged_frames_raise_nothing_but_protocol_errors(data, cuts, place, damage):
    at = place % (len(data) + 1)
    read(cut(PREFACE + data[:at] + damage + data[at + len(damage) :], cuts))


@given(CUTS)
def test_a_request_of_many_frames_is_read_in_order(cuts):
    sent = [
        frames.headers(1, b"h" * 100, ends=False, max_frame_size=40),
        frames.frame(frames.DATA, frames.PADDED, 1, b"\3abc" + bytes(3)),
        frames.frame(frames.DATA, frames.END_STREAM, 1, b"x" * 30_000),
        frames.reset(1, ErrorCode.CANCEL),
    ]
    assert read(cut(PREFACE + b"".join(sent), cuts)) == [
        ("preface",),
        ("settings", b""),
        ("headers", 1, b"h" * 100, False),
        ("data", 1, 7, b"abc", False),  # padding counts for flow control
        ("data", 1, 30_000, b"x" * 30_000, True),
        ("reset", 1),
    ]


def test_a_stream_error_does_not_stop_the_reader():
    data = PREFACE + frames.headers(1, b"stream error", ends=True) + frames.headers(3, b"next", ends=True)
    assert read([data])[2:] == [
        ("headers", 1, b"stream error", True),
        ("stream error", 1, ErrorCode.CANCEL),
        ("headers", 3, b"next", True),
    ]


def test_a_stopped_reader_calls_nothing_for_frames_that_are_already_here():
    recorder = Recorder()
    reader = Http2FrameReader(recorder, LIMITS)
    recorder.on_settings = lambda payload: reader.stop()
    reader.feed(PREFACE + frames.ping(bytes(8)))
    reader.feed(frames.ping(bytes(8)))
    assert recorder.events == [("preface",)]


def test_the_rest_of_a_long_data_frame_may_bypass_the_reader():
    recorder = Recorder()
    reader = Http2FrameReader(recorder, LIMITS)
    reader.feed(PREFACE + frames.head(frames.DATA, frames.END_STREAM, 1, 50_000) + b"x" * 10_000)
    assert reader.data_left == 40_000
    reader.on_direct_read(30_000)
    assert reader.data_left == 10_000
    reader.feed(b"y" * 10_000 + frames.ping(bytes(8)))
    assert recorder.events[2:] == [
        ("data", 1, 50_000, b"x" * 10_000 + b"y" * 10_000, True),
        ("ping", bytes(8), False),
    ]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.1", b"\x16\x03\x01"])
def test_another_protocol_is_recognised_by_its_first_bytes(data):
    assert read([data, b"more"]) == [("other protocol",)]
    assert read([data[at : at + 1] for at in range(len(data))]) == [("other protocol",)]


class Clock:
    """A clock on which each reading takes a share of a turn, or nothing."""

    def __init__(self, step: float) -> None:
        self.now = 1.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@given(st.lists(FRAMES, max_size=8).map(b"".join), CUTS, st.booleans())
def test_frames_are_the_same_however_many_turns_they_take(data, cuts, keeps):
    """With a slow clock, each turn has a frame or two. What arrives meanwhile waits behind what is kept."""
    whole = PREFACE + data
    recorder = Recorder()
    reader = Http2FrameReader(recorder, LIMITS, clock=Clock(SHARE_SECONDS))
    try:
        for piece in cut(whole, cuts):
            (reader.keep if keeps else reader.feed)(memoryview(piece))
            if keeps:
                reader.resume()
        turns = 0
        while reader.has_rest:
            reader.resume()
            turns += 1
    except Http2ConnectionError as error:
        recorder.events.append(("connection error", error.code, error.text))
    assert recorder.events == read([whole])


def test_a_turn_ends_when_the_share_is_used():
    recorder, clock = Recorder(), Clock(SHARE_SECONDS / 4.5)
    reader = Http2FrameReader(recorder, LIMITS, clock=clock)
    reader.feed(PREFACE + frames.settings(()) + frames.ping(bytes(8)) * 1000)
    assert reader.has_rest
    assert 3 * 512 < 17 * len(recorder.events) < 7 * 512
    seen = len(recorder.events)
    reader.stop()
    reader.resume()
    assert (len(recorder.events), reader.has_rest) == (seen, False)


def test_the_content_of_a_long_frame_takes_turns_too():
    recorder = Recorder()
    chunks = []
    recorder.on_data_chunk = lambda data, start, end, is_last: chunks.append(end - start)
    reader = Http2FrameReader(recorder, LIMITS, clock=Clock(SHARE_SECONDS))
    reader.feed(PREFACE + frames.head(frames.DATA, 0, 1, 1 << 16))
    reader.feed(bytes(1 << 16))
    while reader.has_rest:
        reader.resume()
    assert sum(chunks) == 1 << 16
    assert max(chunks) <= 1 << 15

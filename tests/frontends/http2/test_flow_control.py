"""Windows without frames: what may be sent, and what must be announced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.frontends.http2.flow_control import ReceiveFlow, SendFlow
from naiad.frontends.http2.frames import (
    DEFAULT_WINDOW,
    MAX_WINDOW,
    ErrorCode,
    Http2ConnectionError,
    Http2StreamError,
)


class Windows:
    """The windows of a stream."""

    def __init__(self, send_window: int = DEFAULT_WINDOW, receive_window: int = 1000) -> None:
        self.number = 1
        self.send_window = send_window
        self.receive_window = receive_window
        self.is_paused = False
        self.is_half_closed = False


def test_sending_takes_from_both_windows():
    flow, stream = SendFlow(), Windows(100)
    assert flow.available(stream) == 100
    assert flow.try_consume(stream, 60)
    assert not flow.try_consume(stream, 41)
    assert (flow.window, stream.send_window) == (DEFAULT_WINDOW - 60, 40)
    assert flow.try_consume(stream, 40)


def test_the_connections_window_bounds_all_streams():
    flow, first, second = SendFlow(), Windows(), Windows()
    flow.consume(first, DEFAULT_WINDOW)
    assert flow.available(second) == 0
    flow.on_window_update(10)
    assert flow.available(second) == 10
    assert flow.available(first) == 0


def test_an_increment_of_0_is_an_error_of_what_it_names():
    flow = SendFlow()
    with pytest.raises(Http2ConnectionError) as connection:
        flow.on_window_update(0)
    with pytest.raises(Http2StreamError) as stream:
        flow.on_stream_window_update(Windows(), 0)
    assert connection.value.code == stream.value.code == ErrorCode.PROTOCOL_ERROR


def test_no_window_exceeds_31_bits():
    flow, stream = SendFlow(), Windows(1)
    flow.on_window_update(MAX_WINDOW - DEFAULT_WINDOW)
    flow.on_stream_window_update(stream, MAX_WINDOW - 1)
    with pytest.raises(Http2ConnectionError, match="FLOW_CONTROL_ERROR"):
        flow.on_window_update(1)
    with pytest.raises(Http2StreamError, match="FLOW_CONTROL_ERROR"):
        flow.on_stream_window_update(stream, 1)
    with pytest.raises(Http2ConnectionError, match="FLOW_CONTROL_ERROR"):
        flow.change_initial_window(DEFAULT_WINDOW + 1, [Windows(MAX_WINDOW)])


def test_a_new_initial_window_moves_open_streams_even_below_zero_and_not_the_connection():
    flow, stream = SendFlow(), Windows()
    flow.consume(stream, 1000)
    assert flow.change_initial_window(500, [stream])
    assert stream.send_window == -500
    assert flow.available(stream) == -500
    assert flow.window == DEFAULT_WINDOW - 1000
    assert flow.change_initial_window(1500, [stream])
    assert stream.send_window == 500
    assert not flow.change_initial_window(1500, [stream])


def test_a_paused_stream_is_opened_when_it_is_resumed():
    flow, stream = ReceiveFlow(2000, 1000), Windows()
    stream.is_paused = True
    assert flow.consume_on_stream(stream, 900) == 0
    stream.is_paused = False
    assert flow.reopen(stream) == 900
    assert flow.reopen(stream) == 0


def test_a_stream_whose_request_is_complete_needs_no_window():
    flow, stream = ReceiveFlow(2000, 1000), Windows()
    stream.is_half_closed = True
    assert flow.consume_on_stream(stream, 1000) == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 400)), max_size=40))
def test_both_sides_count_the_same(sent):
    """A sender that sends what its windows allow, and opens them by what is announced, never breaks the rules."""
    receiver, sender = ReceiveFlow(1000, 600), SendFlow()
    sender.window = 1000
    theirs = {number: Windows(receive_window=600) for number in (1, 2, 3)}
    ours = {number: Windows(send_window=600) for number in (1, 2, 3)}
    for number, wanted in sent:
        size = max(0, min(wanted, sender.available(ours[number])))
        sender.consume(ours[number], size)
        increment = receiver.consume(size)
        if increment:
            sender.on_window_update(increment)
        increment = receiver.consume_on_stream(theirs[number], size)
        if increment:
            sender.on_stream_window_update(ours[number], increment)
        assert sender.window == receiver.window >= 500
        assert ours[number].send_window == theirs[number].receive_window >= 300


@pytest.mark.parametrize(("size", "increment"), [(0, 0), (50, 0), (51, 51), (100, 100)])
@pytest.mark.parametrize("first", [0, 20])
def test_a_window_is_opened_to_its_full_size_once_less_than_half_of_it_is_left(first, size, increment):
    flow, stream = ReceiveFlow(100, 100), Windows(receive_window=100)
    part = min(first, size)
    assert (flow.consume(part), flow.consume_on_stream(stream, part)) == (0, 0)
    assert flow.consume(size - part) == flow.consume_on_stream(stream, size - part) == increment
    assert flow.window == stream.receive_window == 100 - size + increment


def test_data_beyond_a_window_is_an_error():
    flow = ReceiveFlow(100, 100)
    with pytest.raises(Http2ConnectionError, match=r"FLOW_CONTROL_ERROR.*more DATA than the connection's window"):
        flow.consume(101)
    with pytest.raises(Http2StreamError, match="FLOW_CONTROL_ERROR"):
        flow.consume_on_stream(Windows(receive_window=100), 101)


@pytest.mark.parametrize(("window", "increment"), [(100, 0), (60, 0), (50, 0), (49, 51), (0, 100)])
def test_a_stream_that_continues_opens_its_window_if_less_than_half_is_left(window, increment):
    flow = ReceiveFlow(1000, 100)
    stream = Windows(receive_window=window)
    assert flow.reopen(stream) == increment
    assert stream.receive_window == window + increment


@pytest.mark.parametrize("name", ["is_paused", "is_half_closed"])
def test_a_stream_that_takes_no_data_keeps_its_window(name):
    stream = Windows(receive_window=10)
    setattr(stream, name, True)
    assert ReceiveFlow(1000, 100).reopen(stream) == 0
    assert stream.receive_window == 10

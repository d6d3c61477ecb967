"""The account of a connection: what empties it, what refills it, and what it says at the end."""

from __future__ import annotations

import pytest

from naiad.frontends.http2.flood_account import ANSWER_EARNS, MAX_REFUND, Flood, FloodAccount
from naiad.frontends.http2.frames import ErrorCode, Http2ConnectionError
from naiad.frontends.http2.limits import Http2Limits

LIMITS = Http2Limits(overhead_seconds=0.001, overhead_share=0.1)


@pytest.fixture
def made():
    return FloodAccount(LIMITS, 10.0)


def test_an_account_holds_a_burst_and_is_then_empty(made):
    assert made.charge(Flood.PING, 400)
    assert made.charge(Flood.RESET, 600)
    assert not made.charge(Flood.PING, 300)
    with pytest.raises(Http2ConnectionError) as failure:
        made.settle(10.0, 0)
    assert failure.value.code == ErrorCode.ENHANCE_YOUR_CALM
    assert failure.value.text == (
        "too many PING frames: they cost 0.00 s of processor time, more than the answers on this connection account for"
    )


def test_time_refills_an_account_up_to_its_burst(made):
    made.charge(Flood.PING, 1500)
    made.settle(10.006, 0)  # a tenth of 6 ms
    assert made.charge(Flood.PING, 100)
    assert not made.charge(Flood.PING, 1)
    made.settle(1000, 0)
    assert made.charge(Flood.PING, 1000)
    assert not made.charge(Flood.PING, 1)


def test_time_in_which_the_connection_was_behind_refills_nothing(made):
    made.charge(Flood.PING, 1200)
    made.hold(10.0)
    with pytest.raises(Http2ConnectionError):
        made.settle(20.0, 0)
    made.release(20.0)
    with pytest.raises(Http2ConnectionError):
        made.settle(20.0, 0)
    made.settle(20.003, 0)


def test_each_answer_counts_once(made):
    made.charge(Flood.PING, 1000 + 2 * ANSWER_EARNS)
    made.settle(10.0, 2)
    assert not made.charge(Flood.PING, 1)
    with pytest.raises(Http2ConnectionError):
        made.settle(10.0, 2)
    made.settle(10.0, 3)


def test_what_fields_cost_is_refunded_in_part(made):
    made.charge(Flood.FIELDS, 900)
    made.refund(900)
    assert made.charge(Flood.FIELDS, 1000)
    made.charge(Flood.FIELDS, MAX_REFUND + 500)
    made.refund(MAX_REFUND + 500)
    with pytest.raises(Http2ConnectionError, match="compressed fields"):
        made.settle(10.0, 0)


def test_the_greatest_flood_since_the_account_was_well_filled_is_named(made):
    made.charge(Flood.RESET, 1100)
    made.settle(20.0, 0)
    made.charge(Flood.WINDOW_UPDATE, 600)
    made.charge(Flood.SETTINGS, 500)
    with pytest.raises(Http2ConnectionError, match="WINDOW_UPDATE"):
        made.settle(20.0, 0)

"""Floods, told from work by what they cost. Pure: callers pass the time and the number of answers.

A flood is traffic that makes the server work without a request to answer: pings, window updates of a byte, requests
that are cancelled as soon as they are sent. Counts alone do not show it. A client that receives a million responses
sends more control frames than an attacker needs. So each connection has an account. Frames without work are charged
with the processor time that they cost. The account is refilled by each answer that leaves, and by time in which the
connection was not behind. When it is empty, the connection ends.

The costs are estimates, not measurements of each frame: a clock costs as much as a frame, and on a busy machine
measured times depend on other processes. An account gives the same result on every machine.

Requests themselves are not charged. What many of them cost is shared fairly between connections by
`turns.py`.
"""

from __future__ import annotations

import enum

from naiad.frontends.http2.frames import ErrorCode, Http2ConnectionError
from naiad.frontends.http2.limits import Http2Limits

# Microseconds of processor time, measured with Python 3.11 on a core of 2.6 GHz.
WINDOW_UPDATE_COST = 2.0
FRAGMENT_COST = 4.0  # for each piece of a response that a window has room for, where that is few bytes
SMALL_DATA_COST = 3.5
SMALL_DATA_SIZE = 256  # a DATA frame of fewer bytes is charged, unless it ends its request
PING_COST = 4.0
IGNORED_COST = 2.0
SETTINGS_COST = 8.0
SETTING_COST = 0.4
WINDOW_CHANGE_COST = 0.15  # for each open stream, whose window a new SETTINGS_INITIAL_WINDOW_SIZE moves (section 6.9.2)
RESET_COST = 2.0
CANCEL_COST = 8.0  # a request is cancelled before its end
COMPLETE_CANCEL_COST = 30.0  # when it was cancelled, or reset because of an error, it had reached a model
STREAM_ERROR_COST = 12.0
FIELD_COST = 1.5  # for each decoded field
HUFFMAN_COST = 0.28  # for each byte that Huffman's code compresses

ANSWER_EARNS = 100.0  # what each answer is worth: a response, or a message of one
# A request that is answered gets back what its fields cost, up to this: some clients compress new fields for each
# request, and 3 KB of them are not a flood.
MAX_REFUND = 1000.0


class Flood(enum.IntEnum):
    """What is charged."""

    WINDOW_UPDATE = 0
    SMALL_DATA = 1
    PING = 2
    SETTINGS = 3
    IGNORED = 4
    RESET = 5
    STREAM_ERROR = 6
    REFUSED = 7
    FIELDS = 8


_NAMES = (
    "WINDOW_UPDATE frames",
    "DATA frames of few bytes",
    "PING frames",
    "SETTINGS frames",
    "frames without a meaning, such as PRIORITY",
    "requests that are cancelled (RST_STREAM)",
    "stream errors",
    "streams beyond the limit",
    "compressed fields",
)  # how GOAWAY names them, in their order


class FloodAccount:
    """The account of one connection."""

    __slots__ = ("_answers", "_balance", "_burst", "_charged", "_is_held", "_refilled_at", "_share")

    def __init__(self, limits: Http2Limits, now: float) -> None:
        """A full account; *now* is in seconds of any clock."""
        self._burst = limits.overhead_seconds * 1e6
        self._share = limits.overhead_share * 1e6
        self._balance = self._burst
        self._charged = [0.0] * len(Flood)
        self._refilled_at = now
        self._answers = 0
        self._is_held = False

    def charge(self, flood: Flood, cost: float) -> bool:
        """Charge *cost* microseconds; False where the account is empty, so that `settle` is needed."""
        self._charged[flood] += cost
        self._balance -= cost
        return self._balance >= 0

    def refund(self, cost: float) -> None:
        cost = min(cost, MAX_REFUND)
        self._charged[Flood.FIELDS] -= cost
        self._balance += cost

    def settle(self, now: float, answers: int) -> None:
        """Refill the account by time and all *answers* so far; Http2ConnectionError if it is still empty."""
        self._refill(now)
        self._balance = min(self._burst, self._balance + (answers - self._answers) * ANSWER_EARNS)
        self._answers = answers
        if self._balance < 0:
            cost = max(self._charged)
            text = (
                f"too many {_NAMES[self._charged.index(cost)]}: they cost {cost / 1e6:.2f} s of processor time, "
                "more than the answers on this connection account for"
            )
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, text)
        if self._balance > self._burst / 2:  # what was charged until now was not a flood
            self._charged = [0.0] * len(Flood)

    def hold(self, now: float) -> None:
        """Time refills nothing from now on: the connection has sent more than the server could handle in a turn."""
        self._refill(now)
        self._is_held = True

    def release(self, now: float) -> None:
        self._is_held = False
        self._refilled_at = now

    def _refill(self, now: float) -> None:
        if not self._is_held:
            self._balance = min(self._burst, self._balance + (now - self._refilled_at) * self._share)
            self._refilled_at = now

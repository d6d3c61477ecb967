"""One budget for the memory of requests in flight and of responses. Pure logic: no clock, no socket.

A `Charge` counts the bytes of one long body or message, from the first byte that arrived until the request is answered.
Announced sizes count nothing. While the budget is full, bodies are not read: their clients block on TCP, or on a window
of HTTP/2. When requests that end free memory, bodies continue in the order in which they stopped.

A response that is collected counts as a body that is incomplete: while the budget is full, its model is paused.

Bodies that are incomplete can fill the budget among themselves, so that none of them ever completes. `on_tick` finds
that case: one body has been stopped for too long. The largest incomplete body of all clients is then refused,
because that frees the most.

Reading stops at `soft_limit`, below the limit. What arrives nevertheless, since a window of HTTP/2 was open, has the
rest. If even that is used up, the largest incomplete body is refused at once. So the limit is exceeded by one read at
most. A body that holds nearly all that is in use is read up to the limit: nothing that it could wait for would help it.

A response that its client does not read counts too, until it is sent or the client has left (`unread_responses.py`).
All but the largest of them share the limit with requests, so that one response of any size is sent, and delays no
others. A response for which there is no room becomes an error. Room is made first: while more than the soft limit is
used, the clients that read slowly are disconnected, the slowest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from naiad.frontends.unread_responses import COUNTED_FROM, Reader, UnreadResponse, UnreadTable

TICK_SECONDS = 0.5  # how often `on_tick` is to be called while a body is stopped

_SOFT_SHARE = 7 / 8
_PATIENT_TICKS = 20
"""Ticks that a body may be stopped while complete requests hold most of the budget: models are busy, memory will be
freed when they respond."""
_STUCK_TICKS = 2  # the same while incomplete bodies hold most of it: they wait for each other
_FEW_SHARE = 1 / 16  # what all others may hold while a body is read beyond the soft limit
_LEAST_READ = 1 << 14  # may be read in any case: a read into an empty buffer looks like the end of the connection
_UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class ChargeKind:
    """What is counted, for the reason of a refusal."""

    action: str  # what cannot be done
    smaller: str

    def too_long(self, limit: int) -> str:
        """Why it is refused if it exceeds the limit by itself."""
        return (
            f"cannot {self.action}: it exceeds the {limit} bytes that all requests in flight may use together; "
            f"{self.smaller}, or set --memory-limit-requests"
        )

    def refusal(self, limit: int) -> str:
        """Why it is refused because of others, and what to do."""
        return (
            f"cannot {self.action}: requests in flight use all of the {limit} bytes that they may use together; "
            f"try again later, {self.smaller}, or set --memory-limit-requests"
        )


RECEIVING = ChargeKind("receive the request", "send smaller requests")
COLLECTING = ChargeKind("collect the response", "ask for a shorter one or for a stream")
SENDING = ChargeKind("send the response", "ask for a shorter one")


class Receiver(Protocol):
    """What receives a body or message, or collects a response, and can stop doing so."""

    def resume_receiving(self) -> None:
        """Read again: the budget has room."""

    def refuse(self, reason: str) -> None:
        """Drop what was received, release the charge, and respond with *reason* as 503 or RESOURCE_EXHAUSTED."""


@dataclass(slots=True, eq=False)
class Charge:
    """The bytes that one body or message holds."""

    _budget: RequestBudget
    _receiver: Receiver | None  # None once the body is complete
    kind: ChargeKind
    size: int = 0
    _stopped_at: int = -1  # the tick at which it was stopped

    def __repr__(self) -> str:
        return f"<Charge {self.size} bytes, {'complete' if self._receiver is None else 'incomplete'}>"

    @property
    def room(self) -> int:
        """Bytes that the next read may return."""
        return self._budget._room(self)  # noqa: SLF001 - the two classes are one

    def add(self, count: int) -> bool:
        """Count *count* bytes more; return whether to continue reading.

        If not, the receiver stops reading until `resume_receiving`. `refuse` may be called before this returns.
        """
        return self._budget._add(self, count)  # noqa: SLF001 - the two classes are one

    def reduce(self, count: int) -> None:
        """*count* bytes are freed; the rest still counts."""
        self.size -= count
        self._budget._free(count)  # noqa: SLF001 - the two classes are one

    def complete(self) -> None:
        """The body has arrived: it is not refused any more, and counts until `release`."""
        self._budget._complete(self)  # noqa: SLF001 - the two classes are one

    def release(self) -> None:
        """The bytes are freed. Further calls do nothing."""
        self._budget._release(self)  # noqa: SLF001 - the two classes are one


class RequestBudget:
    """Counts the bytes of bodies and messages, and decides which of them are read and which refused."""

    def __init__(
        self,
        limit: int = _UNLIMITED,
        on_stopped: Callable[[], None] = lambda: None,  # one was stopped: call `on_tick` until it returns False
        on_used: Callable[[], None] = lambda: None,  # the first bytes count: the same until none are in use
        on_dropped: Callable[[str], None] = lambda _: None,  # with the reason, as *dropped* counts it
    ) -> None:
        self.limit = limit  # bytes of all of them together
        self.soft_limit = int(limit * _SOFT_SHARE)  # where reading stops
        self.in_use = 0  # bytes that they hold now
        self.peak = 0  # the most that they held since `take_peak`
        self.refused = 0  # how many were refused since the start
        self.unread = UnreadTable()  # responses that wait for their clients, which *in_use* includes
        # How many of these were dropped since the start: `full`, as there was no room; `slow`, as their client read too
        # slowly; `time`, as it did so for the time that a call may take.
        self.dropped: Counter[str] = Counter()
        self._on_dropped = on_dropped
        self._on_stopped = on_stopped
        self._on_used = on_used
        self._incomplete: dict[Charge, None] = {}
        self._stopped: dict[Charge, None] = {}
        self._few = int(limit * _FEW_SHARE)
        # The body that holds nearly all of the soft limit, if there is one, and its size at the last tick.
        self._large: Charge | None = None
        self._large_size = 0
        self._tick = 0

    def __repr__(self) -> str:
        return f"<RequestBudget {self.in_use} of {self.limit} bytes, {len(self._stopped)} stopped>"

    @property
    def stopped_count(self) -> int:
        return len(self._stopped)

    def open(self, receiver: Receiver, kind: ChargeKind = RECEIVING) -> Charge:
        """A charge for a body, or for a response that is collected, that begins."""
        charge = Charge(self, receiver, kind)
        self._incomplete[charge] = None
        return charge

    def open_unread(self, reader: Reader, size: int = 0) -> UnreadResponse:
        """Count *size* bytes that wait for a client, for which `has_room`, or which `resize` sets."""
        response = UnreadResponse(reader, self._resize_unread)
        self._put_unread(response, size)
        response.checked = size
        return response

    def has_room(self, size: int) -> bool:
        """Whether a response of *size* bytes may wait for its client. Slow clients are disconnected if that makes room.

        To be called before it is sent. If not, the client gets `refusal_to_send` instead.
        """

        def is_full() -> bool:
            return bool(self.unread) and self.in_use + size - max(self.unread.largest, size) > self.limit

        self._disconnect_slow(is_full)
        if is_full():
            self.note_dropped("full")
            return False
        return True

    @property
    def refusal_to_send(self) -> str:
        return SENDING.refusal(self.limit)

    def note_dropped(self, reason: str) -> None:
        self.dropped[reason] += 1
        self._on_dropped(reason)

    def take_peak(self) -> int:
        """The most that was held since the last call."""
        peak, self.peak = self.peak, self.in_use
        return peak

    def on_tick(self) -> bool:
        """Drop what holds up others for too long; return whether any body is stopped.

        Slow clients are disconnected while more than the soft limit is used. The largest incomplete body is refused if
        one has been stopped for too long.
        """
        self._tick += 1
        if self.unread:
            self.unread.look(self._tick)
            self._disconnect_slow(lambda: self._shared > self.soft_limit)
        large_size, self._large_size = self._large_size, 0 if self._large is None else self._large.size
        if not self._stopped:
            return False
        oldest = next(iter(self._stopped))
        incomplete = sum(charge.size for charge in self._incomplete)
        is_stuck = incomplete * 2 >= self._shared and self._large_size <= large_size
        patience = _STUCK_TICKS if is_stuck else _PATIENT_TICKS
        if self._tick - oldest._stopped_at >= patience:  # noqa: SLF001 - the two classes are one
            self._refuse_largest()
        return bool(self._stopped)

    def _add(self, charge: Charge, count: int) -> bool:
        if not self.in_use:
            self._on_used()
        charge.size += count
        self.in_use += count
        self.peak = max(self.peak, self.in_use)
        if self.in_use <= self.soft_limit:
            return True
        if self.unread:
            self._disconnect_slow(lambda: self._shared > self.limit)
        while self._shared > self.limit and self._incomplete:
            self._refuse_largest()
        if charge not in self._incomplete:
            return True
        if charge.size > self.soft_limit - self._few:
            self._large = charge
        if self._may_continue(charge):
            return True
        if charge not in self._stopped:
            charge._stopped_at = self._tick  # noqa: SLF001 - the two classes are one
            self._stopped[charge] = None
            self._on_stopped()
        return False

    @property
    def _shared(self) -> int:
        """What the limits are for: all but the largest unread response."""
        return self.in_use - self.unread.largest

    def _may_continue(self, charge: Charge) -> bool:
        shared = self._shared
        return shared <= self.soft_limit or shared - charge.size <= self._few

    def _room(self, charge: Charge) -> int:
        shared = self._shared
        limit = self.limit if shared - charge.size <= self._few else self.soft_limit
        return max(limit - shared, _LEAST_READ)

    def _complete(self, charge: Charge) -> None:
        charge._receiver = None  # noqa: SLF001 - the two classes are one
        self._incomplete.pop(charge, None)
        self._stopped.pop(charge, None)
        if charge is self._large:
            self._large = None

    def _release(self, charge: Charge) -> None:
        self._complete(charge)
        size, charge.size = charge.size, 0
        self._free(size)

    def _free(self, count: int) -> None:
        self.in_use -= count
        while self._stopped and self._shared < self.soft_limit:
            self._resume(next(iter(self._stopped)))
        if self._large is not None and self._large in self._stopped and self._may_continue(self._large):
            self._resume(self._large)

    def _resume(self, stopped: Charge) -> None:
        del self._stopped[stopped]
        receiver = stopped._receiver  # noqa: SLF001 - the two classes are one
        assert receiver is not None  # complete charges are not stopped
        receiver.resume_receiving()

    def _refuse_largest(self) -> None:
        largest = max(self._incomplete, key=lambda charge: charge.size)
        receiver = largest._receiver  # noqa: SLF001 - the two classes are one
        assert receiver is not None  # complete charges are in no table
        self.refused += 1
        is_alone = self._shared - largest.size <= self._few
        explain = largest.kind.too_long if is_alone and self._shared > self.limit else largest.kind.refusal
        receiver.refuse(explain(self.limit))
        largest.release()

    def _resize_unread(self, response: UnreadResponse, size: int) -> None:
        is_long = size - response.size >= COUNTED_FROM
        self._put_unread(response, size)
        if size - response.checked < COUNTED_FROM:
            response.checked = min(response.checked, size)
            return
        response.checked = size
        self._disconnect_slow(lambda: self._shared > self.limit)
        if self._shared > self.limit:
            # What grows by little at a time is not worse than others.
            slowest = response if is_long else self.unread.slowest()
            assert slowest is not None
            self._disconnect(slowest)

    def _put_unread(self, response: UnreadResponse, size: int) -> None:
        grown = size - response.size
        if grown > 0 and not self.in_use:
            self._on_used()
        self.unread.put(response, size)
        if grown < 0:
            self._free(-grown)
        else:
            self.in_use += grown
            self.peak = max(self.peak, self.in_use)

    def _disconnect_slow(self, is_needed: Callable[[], bool]) -> None:
        """Disconnect slow clients while *is_needed*, the slowest first."""
        if not is_needed():
            return
        for response in self.unread.slow():
            if response.size:  # it was not released meanwhile
                self._disconnect(response)
            if not is_needed():
                return

    def _disconnect(self, response: UnreadResponse) -> None:
        self.note_dropped("slow")
        response.reader.disconnect()
        response.release()


def too_long_for_budget(what: str, size: int, limit: int) -> str:
    """Why a body that is longer than the whole budget is rejected."""
    return (
        f"{what} of {size} bytes exceeds the {limit} bytes that all requests in flight may use together; "
        "send smaller requests, or set --memory-limit-requests"
    )

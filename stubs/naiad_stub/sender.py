"""Answers that a model sends itself: any number of them, from any thread, while `execute` runs and after it returned.

Rules and texts are the reference's (PB src/response_sender.cc). Two things are ours. A model that sends faster than its
client reads is held back, so that no memory runs full. And a sender that is dropped without the final flag ends its
request, where the reference leaves the client waiting for ever.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Dict, List, Optional, Set

from naiad_stub import wire
from naiad_stub.arguments import integer
from naiad_stub.channel import Channel, HostGoneError, Waiter, running_loop
from naiad_stub.exceptions import API_MODULE, TritonError, TritonModelException
from naiad_stub.exchange import Batch, ResponseWriter, Ticket, error_entry, mark_entry, responses_frame
from naiad_stub.messages import CancelRequests, Credit
from naiad_stub.response import InferenceResponse

FINAL_FLAG = 1
WINDOW_BYTES = 16 << 20
"""Bytes of one request's responses that may wait for its client before a thread that sends more is held back."""
WINDOW_RESPONSES = 1024
LIMIT_BYTES = 64 << 20
"""Likewise before an event loop that sends more gets an error: held back it would hold up all other requests."""
_OVERHEAD_BYTES = 1024
_MOST_EARLY = 4096


class Answers:
    """How one request was answered so far.

    Attributes:
        closed: Whether it has its last answer.
        count: How many answers it has.
    """

    __slots__ = ("_batch", "_key", "_lock", "_room", "_sending", "_sent", "_sizes", "_taken", "closed", "count", "left")

    def __init__(self, sending: Sending, ticket: Ticket) -> None:
        self.closed = ticket.closed_after is not None
        self.count = ticket.closed_after or 0
        self.left = False  # execute returned without having answered
        self._sending = sending
        self._key = ticket.key
        self._batch = ticket.batch
        self._lock = threading.Lock()  # responses and the final mark must arrive in the order they were allowed
        self._sizes: deque[int] = deque()
        # Two sums instead of one difference: each is changed by one thread at a time, the sender's and the reader's.
        self._sent = self._taken = 0
        self._room: Optional[Waiter] = None

    def check(self, *, has_response: bool, final: bool) -> None:
        """Apply the rules to one more answer.

        Raises:
            TritonModelException: If it is not allowed.
        """
        if not self._sending.decoupled:
            if has_response and self.count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if not has_response and final and not self.count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
        if self.closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def send(self, ticket: Ticket, response: Optional[InferenceResponse], flags: int) -> None:
        """Send one answer; returns when the host's memory has it.

        Raises:
            TritonModelException: If it is not allowed, or cannot be sent.
        """
        final = flags == FINAL_FLAG
        with self._lock:
            self.check(has_response=response is not None, final=final)
            if self._is_full():
                self._wait_for_reader(ticket)
                self.check(has_response=response is not None, final=final)  # execute may have failed meanwhile
            mark = wire.FINAL if final else 0
            size = 0
            if response is None:
                entry = mark_entry(ticket.key, mark)
            else:
                entry, size = self._sending.writer.response(ticket, response, mark)
            self.closed = final
            self.count += 1
            if self._sending.decoupled:
                self._sent += size + _OVERHEAD_BYTES
                self._sizes.append(size + _OVERHEAD_BYTES)
            channel = self._sending.channel
            # Whoever is sending takes it along, and this thread need not wait: a model that answers many requests at
            # a time does so from as many threads, and each message alone would wake the host.
            channel.post(responses_frame(self._batch, [entry], 0, time.monotonic_ns()))
            if channel.is_gone:
                raise HostGoneError

    def _wait_for_reader(self, ticket: Ticket) -> None:
        self._sending.channel.poll()
        while not ticket.is_cancelled:
            self._room = waiter = Waiter()
            if not self._is_full():
                return
            if running_loop() is not None:
                unread = self._sent - self._taken
                if unread < LIMIT_BYTES:
                    return
                raise TritonModelException(
                    f"Unable to send response. The client has not read {len(self._sizes)} earlier responses "
                    f"({unread} bytes with what keeping them costs): it reads too slowly, or not at all."
                )
            self._sending.channel.wait(waiter)

    def _is_full(self) -> bool:
        return self._sent - self._taken >= WINDOW_BYTES or len(self._sizes) >= WINDOW_RESPONSES

    def read(self, count: int) -> None:
        """Note that *count* responses have left for the client."""
        for _ in range(min(count, len(self._sizes))):
            self._taken += self._sizes.popleft()
        self.wake()

    def wake(self) -> None:
        """Have a thread that is held back look again."""
        if self._room is not None:
            self._sending.channel.finish(self._room)

    def __del__(self) -> None:
        if self.left and not self.closed:
            self._sending.dropped(self._key, self._batch, self.count)


class Sending:
    """Response senders of one model, and what the host says of the requests they answer.

    Attributes:
        channel: To the host.
        writer: Encodes responses.
        decoupled: Whether a request may have any number of responses.
    """

    def __init__(
        self, channel: Channel, writer: ResponseWriter, name: str, log: Callable[[str], None], *, decoupled: bool
    ) -> None:
        self.channel = channel
        self.writer = writer
        self.decoupled = decoupled
        self._name = name
        self._log = log
        self._was_told = False
        self._making = threading.Lock()
        self._running: Dict[int, Ticket] = {}
        self._open: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
        self._early: Set[int] = set()  # cancelled before they were begun
        channel.add_handler(CancelRequests, self._on_cancel)
        channel.add_handler(Credit, self._on_credit)

    def begin(self, batch: Batch) -> None:
        """`execute` is about to be called with the requests of *batch*."""
        for ticket in batch.tickets:
            self._running[ticket.key] = ticket
        if self._early:
            for ticket in batch.tickets:
                if ticket.key in self._early:
                    self._early.discard(ticket.key)
                    ticket.is_cancelled = True

    def answers_of(self, ticket: Ticket) -> Answers:
        """The answers of a request, from now on kept account of."""
        if ticket.answers is None:
            # A thread of the model may send while `execute` returns: two accounts of one request, and the one that is
            # dropped would end it.
            with self._making:
                if ticket.answers is None:
                    ticket.answers = Answers(self, ticket)
        answers: Answers = ticket.answers
        return answers

    def leave(self, batch: Batch, unanswered: List[Ticket]) -> None:
        """`execute` returned; *unanswered* requests are answered by senders, or never."""
        for ticket in unanswered:
            answers = self.answers_of(ticket)
            answers.left = True
            if not answers.closed:
                self._open[ticket.key] = ticket
        # After that, or what another thread reads meanwhile would find the ticket nowhere.
        for ticket in batch.tickets:
            self._running.pop(ticket.key, None)

    def is_cancelled(self, ticket: Ticket) -> bool:
        """Whether the sender of a request has gone, as far as the host has said by now."""
        if not ticket.is_cancelled:
            self.channel.poll()
        return ticket.is_cancelled

    def dropped(self, key: int, batch: Batch, count: int) -> None:
        """End a request whose sender is gone. Called by the garbage collector: anywhere."""
        if self.decoupled or count:
            entry = mark_entry(key, wire.FINAL)
        else:
            message = (
                f"Failed to process the request(s) for model '{self._name}', message: execute returned no response "
                "for a request and its response sender was dropped without sending one"
            )
            entry = error_entry(key, TritonError.INTERNAL, message, wire.FINAL)
        self.channel.post(responses_frame(batch, [entry], 0, time.monotonic_ns()))
        if not self._was_told:
            self._was_told = True
            self._log(
                f"'{self._name}' dropped a response sender without TRITONSERVER_RESPONSE_COMPLETE_FINAL; the request "
                "is ended for it (told once)"
            )

    def _find(self, key: int) -> Optional[Ticket]:
        return self._running.get(key) or self._open.get(key)

    def _on_cancel(self, message: CancelRequests) -> None:
        for key in message.keys:
            ticket = self._find(key)
            if ticket is None:  # waits in the channel, or is answered already
                if len(self._early) >= _MOST_EARLY:
                    self._early.clear()
                self._early.add(key)
                continue
            ticket.is_cancelled = True
            if ticket.answers is not None:
                ticket.answers.wake()

    def _on_credit(self, message: Credit) -> None:
        ticket = self._find(message.key)
        if ticket is not None and ticket.answers is not None:
            ticket.answers.read(message.count)


class InferenceResponseSender:
    """Answers one request any number of times (in the default mode: once)."""

    __slots__ = ("_sending", "_ticket")
    __module__ = API_MODULE

    _sending: Sending
    _ticket: Optional[Ticket]

    def __init__(self) -> None:
        raise TypeError("InferenceResponseSender: No constructor defined!")

    @classmethod
    def _of(cls, sending: Any, ticket: Optional[Ticket]) -> InferenceResponseSender:
        """The sender for a received request; None for one that a model made to call another."""
        self = cls.__new__(cls)
        self._sending = sending
        self._ticket = ticket
        return self

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send *response*; with *flags* TRITONSERVER_RESPONSE_COMPLETE_FINAL it is the last, or there is none more."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send takes an InferenceResponse, got {type(response).__name__}")
        if type(flags) is not int:
            flags = integer("flags", flags, 0, 32)
        if self._ticket is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        if flags not in (0, FINAL_FLAG):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        self._sending.answers_of(self._ticket).send(self._ticket, response, flags)

    def is_cancelled(self) -> bool:
        """Whether the client has given up on the request; the final flag is to be sent all the same."""
        return self._ticket is not None and self._sending.is_cancelled(self._ticket)

"""Response senders: any number of responses to a request, from any thread, during `execute` and after it.

Rules and texts are the reference's (PB src/response_sender.cc). Two things are ours:

- **Flow control.** The host returns a CREDIT for each response that has left for the client. A request may have
  WINDOW_BYTES and WINDOW_RESPONSES without credit; beyond that a thread that sends blocks until the client reads. An
  event loop must not block, since it serves all other requests: there `send` raises beyond LIMIT_BYTES. Of a cancelled
  request, responses beyond the window are dropped here, except the final one: nobody may be reading them.
- **Dropped senders.** A sender that is garbage collected without the final flag ends its request with the final mark,
  or with an error if it had no response. The reference never ends the client's request.

`HostSenders` knows the requests of one model by their keys: those of the batches that `execute` works on (`_running`)
and those it returned from without a response (`_open`, weak: a request is open as long as the model has its sender).
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any, Callable, Dict, List, Optional, Set

from naiad_stub import wire
from naiad_stub.arguments import integer
from naiad_stub.channel import Channel, Waiter, running_loop
from naiad_stub.exceptions import API_MODULE, TritonError, TritonModelException
from naiad_stub.exchange import Batch, RequestRecord, ResponseWriter, error_entry, mark_entry, responses_frame
from naiad_stub.messages import REQUEST_PROGRESS, CancelRequests, Credit, Notification, pack
from naiad_stub.primitives import allocate_lock
from naiad_stub.response import InferenceResponse
from naiad_stub.runtime import ResponseSenders

FINAL_FLAG = 1
WINDOW_BYTES = 16 << 20
"""Bytes of one request's responses without credit, from which on a thread that sends blocks."""
WINDOW_RESPONSES = 1024
LIMIT_BYTES = 64 << 20
"""The same for an event loop, where `send` raises instead."""
_OVERHEAD_BYTES = 1024
"""Counted for each response, so that small ones count as well: about what the host keeps for it."""
_MAX_EARLY_CANCELS = 4096


class SenderState:
    """The responses to one request so far.

    Attributes:
        is_closed: Whether it has its last response.
        count: Its responses.
        is_left: Whether `execute` returned without having responded: from then on only a sender can.
    """

    __slots__ = (
        "_batch",
        "_credited",
        "_drops",
        "_key",
        "_lock",
        "_room",
        "_senders",
        "_sent",
        "_sizes",
        "count",
        "is_closed",
        "is_left",
    )

    def __init__(self, senders: HostSenders, record: RequestRecord) -> None:
        self.is_closed = record.closed_after is not None
        self.count = record.closed_after or 0
        self.is_left = False
        self._drops = False
        self._senders = senders
        self._key = record.key
        self._batch = record.batch
        self._lock = allocate_lock()  # responses and the final mark must be sent in the order they were checked
        self._sizes: deque[int] = deque()  # of the responses without credit
        # Two sums instead of their difference: only the sending thread changes one, only the reading thread the other.
        self._sent = self._credited = 0
        self._room: Optional[Waiter] = None

    def check(self, *, has_response: bool, final: bool) -> None:
        """Apply the rules to one more response.

        Raises:
            TritonModelException: If it is not allowed.
        """
        if not self._senders.decoupled:
            if has_response and self.count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if not has_response and final and not self.count:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
        if self.is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def send(self, record: RequestRecord, response: Optional[InferenceResponse], flags: int) -> None:
        """Send one response; its tensors may be changed afterwards.

        Raises:
            TritonModelException: If it is not allowed, or cannot be sent.
        """
        final = flags == FINAL_FLAG
        with self._lock:
            self.check(has_response=response is not None, final=final)
            if self._drops or self._is_full():
                if not self._drops:
                    self._wait_for_credit(record)
                    self.check(has_response=response is not None, final=final)  # execute may have failed meanwhile
                    self._drops = record.is_cancelled and self._is_full()
                if self._drops and not final:  # all that follow: a caller that reads on gets no gaps
                    self.count += 1
                    return
            mark = wire.FINAL if final else 0
            size = 0
            if response is None:
                entry = mark_entry(record.key, mark)
            else:
                entry, size = self._senders.writer.response(record, response, mark)
            self.is_closed = final
            self.count += 1
            if self._senders.decoupled:
                self._sent += size + _OVERHEAD_BYTES
                self._sizes.append(size + _OVERHEAD_BYTES)
            channel = self._senders.channel
            # Posted, so that a thread that is already sending also sends this frame. A model that responds to many
            # requests at a time does so from as many threads, and each separate message would wake the host.
            channel.post(responses_frame(self._batch, [entry], 0, time.monotonic_ns()))
            if channel.is_gone:
                raise channel.gone_error()

    def mark(self, started: int) -> None:
        """Tell the host that the request waits inside the model (0), or since when it is computed (monotonic ns)."""
        with self._lock:
            if self.is_closed:
                return
            if started:
                # Responses say when their computation started.
                batch = self._batch
                self._batch = Batch(batch.number, -1, None)
                self._batch.started = max(started, batch.started)
            fields = {"key": str(self._key), "started": str(started)}
            self._senders.channel.post(pack(Notification(REQUEST_PROGRESS, fields)))

    def _wait_for_credit(self, record: RequestRecord) -> None:
        self._senders.channel.poll()
        while not record.is_cancelled:
            self._room = waiter = Waiter()
            if not self._is_full():
                return
            if running_loop() is not None:
                unread = self._sent - self._credited
                if unread < LIMIT_BYTES:
                    return
                raise TritonModelException(
                    f"Unable to send response. The client has not read {len(self._sizes)} earlier responses "
                    f"({unread} bytes with what keeping them costs): it reads too slowly, or not at all."
                )
            self._senders.channel.wait(waiter)

    def _is_full(self) -> bool:
        return self._sent - self._credited >= WINDOW_BYTES or len(self._sizes) >= WINDOW_RESPONSES

    def on_credit(self, count: int) -> None:
        """Count *count* responses as read by the client."""
        for _ in range(min(count, len(self._sizes))):
            self._credited += self._sizes.popleft()
        self.wake()

    def wake(self) -> None:
        """Have a thread that waits for credit look again."""
        if self._room is not None:
            self._senders.channel.finish(self._room)

    def __del__(self) -> None:
        if self.is_left and not self.is_closed:
            self._senders.on_sender_dropped(self._key, self._batch, self.count)


class HostSenders(ResponseSenders):
    """The response senders of one model, and what the host says about the requests they respond to.

    Attributes:
        channel: The channel to the host.
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
        self._has_warned = False
        self._creating = allocate_lock()
        self._running: Dict[int, RequestRecord] = {}
        self._open: weakref.WeakValueDictionary[int, RequestRecord] = weakref.WeakValueDictionary()
        self._early_cancels: Set[int] = set()  # keys of requests that were cancelled before `execute` got them
        channel.add_handler(CancelRequests, self._on_cancel)
        channel.add_handler(Credit, self._on_credit)

    def sender_of(self, request: Any) -> InferenceResponseSender:
        """The sender of *request*; one that raises when used for a request that the model made itself."""
        record = request._handle
        if record is not None:
            record.has_sender = True
        return InferenceResponseSender._of(self, record)

    def is_cancelled(self, handle: RequestRecord) -> bool:
        """Whether the client of a request cancelled it or disconnected, as far as the host has said by now."""
        if not handle.is_cancelled:
            self.channel.poll()
        return handle.is_cancelled

    def on_execute_start(self, batch: Batch) -> None:
        """Register the requests of *batch*, which `execute` is called with next."""
        for record in batch.records:
            self._running[record.key] = record
        if self._early_cancels:
            for record in batch.records:
                if record.key in self._early_cancels:
                    self._early_cancels.discard(record.key)
                    record.is_cancelled = True

    def on_execute_return(self, batch: Batch, unanswered: List[RequestRecord]) -> None:
        """Leave the *unanswered* requests of *batch* to their senders, and forget the others."""
        for record in unanswered:
            state = self.state_of(record)
            state.is_left = True
            if not state.is_closed:
                self._open[record.key] = record
        # After the loop above: a thread that reads a CREDIT meanwhile must find the record in one of the two.
        for record in batch.records:
            self._running.pop(record.key, None)

    def state_of(self, record: RequestRecord) -> SenderState:
        """The state of a request's sender, created at the first call."""
        if record.sender_state is None:
            # Under a lock, as a thread of the model may send while `execute` returns: of two states of one request,
            # the one that is dropped would end it.
            with self._creating:
                if record.sender_state is None:
                    record.sender_state = SenderState(self, record)
        state: SenderState = record.sender_state
        return state

    def on_sender_dropped(self, key: int, batch: Batch, count: int) -> None:
        """End a request whose sender was dropped after *count* responses. Called by the garbage collector."""
        if self.decoupled or count:
            entry = mark_entry(key, wire.FINAL)
        else:
            message = (
                f"Failed to process the request(s) for model '{self._name}', message: execute returned no response "
                "for a request and its response sender was dropped without sending one"
            )
            entry = error_entry(key, TritonError.INTERNAL, message, wire.FINAL)
        self.channel.post(responses_frame(batch, [entry], 0, time.monotonic_ns()))
        if not self._has_warned:
            self._has_warned = True
            self._log(
                f"'{self._name}' dropped a response sender without TRITONSERVER_RESPONSE_COMPLETE_FINAL; the request "
                "is ended for it (told once)"
            )

    def _find(self, key: int) -> Optional[RequestRecord]:
        return self._running.get(key) or self._open.get(key)

    def _on_cancel(self, message: CancelRequests) -> None:
        for key in message.keys:
            record = self._find(key)
            if record is None:  # its batch is still queued in the channel, or it has its last response
                if len(self._early_cancels) >= _MAX_EARLY_CANCELS:
                    self._early_cancels.clear()
                self._early_cancels.add(key)
                continue
            record.is_cancelled = True
            if record.sender_state is not None:
                record.sender_state.wake()

    def _on_credit(self, message: Credit) -> None:
        record = self._find(message.key)
        if record is not None and record.sender_state is not None:
            record.sender_state.on_credit(message.count)


class InferenceResponseSender:
    """Sends any number of responses to one request (in the default mode: one)."""

    __slots__ = ("__weakref__", "_record", "_senders")
    __module__ = API_MODULE

    _senders: HostSenders
    _record: Optional[RequestRecord]

    def __init__(self) -> None:
        raise TypeError("InferenceResponseSender: No constructor defined!")

    @classmethod
    def _of(cls, senders: Any, record: Optional[RequestRecord]) -> InferenceResponseSender:
        """The sender for a received request; None for one that a model made to call another."""
        self = cls.__new__(cls)
        self._senders = senders
        self._record = record
        return self

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send *response*, or only the final mark.

        Args:
            response: The response.
            flags: TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last response, or instead of one more.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send takes an InferenceResponse, got {type(response).__name__}")
        if type(flags) is not int:
            flags = integer("flags", flags, 0, 32)
        if self._record is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        if flags not in (0, FINAL_FLAG):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        self._senders.state_of(self._record).send(self._record, response, flags)

    def mark_queued(self) -> None:
        """Report that the request waits inside the model, for example in the queue of an engine.

        Not in the reference. Until `mark_started` the request counts as pending, and its time as queue time. Call it
        after `execute` has returned or while it runs, from any thread.
        """
        if self._record is not None:
            self._senders.state_of(self._record).mark(0)

    def mark_started(self, at: Optional[int] = None) -> None:
        """Report that the model computes the request since *at* (`time.monotonic_ns`), by default now."""
        if self._record is not None:
            self._senders.state_of(self._record).mark(at or time.monotonic_ns())

    def is_cancelled(self) -> bool:
        """Whether the client cancelled the request or disconnected; the final flag must be sent all the same."""
        return self._record is not None and self._senders.is_cancelled(self._record)

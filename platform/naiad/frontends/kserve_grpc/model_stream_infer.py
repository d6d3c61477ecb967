"""ModelStreamInfer: messages in and out, as fast as the client reads.

Back pressure has two steps. While responses wait for a client that does not read, its further requests wait here; once
some do (`has_backlog`), the call does not let the client send more, so the client itself blocks. Other calls of the
connection continue.

Requests also wait when many arrive at once: 16 KB may be 3,000 messages, and each needs at least an error response.
They are submitted for a share of the turn (see `turns.py`), the others later. What arrives while many wait
(`is_full`) is kept by the call as it is, since a message that waits takes ten times the bytes of a short one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import perf_counter
from typing import cast

from naiad.core.errors import NotReadyError
from naiad.core.turns import SHARE_SECONDS
from naiad.frontends.grpc.calls import GrpcCall
from naiad.frontends.grpc.gate import SHUTTING_DOWN
from naiad.frontends.grpc.messages import Message
from naiad.frontends.grpc.request_messages import RequestMessages
from naiad.frontends.kserve_grpc.infer_stream import InferStream
from naiad.frontends.kserve_grpc.service import ServiceContext
from naiad.protocol.inference import InferRequest, SubmittedRequest

_MAX_UNSENT = 1 << 22  # bytes of unsent responses beyond which further requests wait
_MAX_EXPECTED = 1 << 26
"""Bytes of responses to requests in flight, as expected, beyond which further requests wait: if the client stops
reading, all of them will be unsent."""
_MAX_COPIED = 1 << 20
_MAX_WAITING = 64  # Requests that wait as messages. Content that follows them is kept unread.
_NO_REQUEST = object()  # marks a message without a request to confirm: waiting requests are fed after it, too


@dataclass(slots=True, eq=False)
class ModelStreamInfer:
    """One stream of requests: the method of its call. Implements `StreamingMethod` and `MessageConsumer`."""

    _context: ServiceContext
    _call: GrpcCall
    _request: RequestMessages = field(init=False)
    _inference: InferStream = field(init=False)
    _waiting: deque[Message] = field(default_factory=deque)
    _queued_size: int = 0  # bytes of `_waiting`
    _has_all_messages: bool = False
    _is_feeding: bool = False
    _is_deferred: bool = False
    _longest_message: int = 0  # the longest so far, either way: the best guess of a response's size

    def __post_init__(self) -> None:
        context, head = self._context, self._call.head
        self._request = self._call.open_request(self)
        self._inference = InferStream(
            context.engine,
            context.gate,
            self._send_outgoing,
            context.extensions,
            self._forward_metadata,
            head.propagated,
            ("triton_grpc_error", "true") in head.metadata,
        )
        context.gate.add_close_callback(self._send_outgoing)

    # -- for the call -------------------------------------------------------------------------------------------

    def on_messages(self, messages: list[Message], *, ended: bool) -> None:
        """Submit requests, or let them wait; *ended* after the last one."""
        # The buffers of long messages are not used again, so these need no copy.
        self._waiting.extend([message if len(message) > _MAX_COPIED else bytes(message) for message in messages])
        self._queued_size += sum(map(len, messages))
        self._has_all_messages = self._has_all_messages or ended
        self._feed()

    @property
    def is_full(self) -> bool:
        """Whether so many requests wait that what follows is not made into messages."""
        return len(self._waiting) >= _MAX_WAITING

    @property
    def has_backlog(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting_size(self) -> int:
        # What the requests in flight hold is an estimate: as much as the longest message so far, each.
        return self._queued_size + self._inference.pending * self._longest_message

    def on_sent(self, marker: object) -> None:
        """A message has left; requests that waited for it are submitted."""
        if marker is not _NO_REQUEST:
            self._inference.on_sent(cast("SubmittedRequest", marker))
        if self._waiting and self._call.unsent < _MAX_UNSENT // 2:
            self._feed()

    def on_cancel(self) -> None:
        self._detach()
        self._waiting.clear()
        self._queued_size = 0
        self._inference.cancel()

    # -- requests and responses ---------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Submit waiting requests as far as there is room for their responses."""
        if self._is_feeding or self._is_deferred:
            return
        self._is_feeding = True
        deadline = 0.0
        try:
            while self._can_feed() and (self._waiting or self._read_more()) and self._has_room():
                message = self._waiting.popleft()
                self._queued_size -= len(message)
                self._longest_message = max(self._longest_message, len(message))
                self._inference.feed(message)
                if self._waiting:
                    now = perf_counter()
                    if not deadline:
                        deadline = now + SHARE_SECONDS
                    elif now >= deadline:
                        self._is_deferred = True
                        self._call.defer(self._resume)
                        break
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            self._call.fail(error)
        finally:
            self._is_feeding = False
        call = self._call
        if call.is_over:
            return
        self._request.update_window()
        if self._has_all_messages and not self._waiting and not call.fail_if_incomplete():
            self._inference.end_requests()

    def _can_feed(self) -> bool:
        """Whether the next message may be submitted: not before a long one is read, as requests keep their order."""
        return not self._call.is_over and not self._inference.is_reading

    def _resume(self) -> None:
        self._is_deferred = False
        if not self._call.is_over:
            self._feed()

    def _read_more(self) -> bool:
        """Read some of the content that was kept; return whether a message waits now."""
        while not self._waiting and self._request.read_unread():
            pass
        return bool(self._waiting)

    def _has_room(self) -> bool:
        """Whether the responses to one more request may have to wait here."""
        return self._call.unsent < _MAX_UNSENT and self._inference.pending * self._longest_message < _MAX_EXPECTED

    def _send_outgoing(self) -> None:
        """Send the messages that are ready, and end the call after the last one."""
        call, inference, outgoing = self._call, self._inference, self._inference.outgoing
        while outgoing and not call.is_over:
            message, submitted = outgoing.popleft()
            self._longest_message = max(self._longest_message, len(message))
            call.send(message, _NO_REQUEST if submitted is None else submitted)
        if call.is_over:
            return
        if self._request.charge is not None:  # what is held has only become less
            self._request.recount()
        if inference.failure is not None:
            call.fail(inference.failure)
        elif inference.is_finished:
            call.complete()
            self._detach()
        elif self._context.gate.is_closed and inference.is_idle:
            call.fail(NotReadyError(SHUTTING_DOWN))
        elif self._waiting or self._request.unread is not None:
            self._feed()

    def _forward_metadata(self, request: InferRequest) -> None:
        if self._context.forwarder is not None:
            request.propagated = self._context.forwarder.forward(request, self._call.head.metadata, request.propagated)

    def _detach(self) -> None:
        self._context.gate.remove_close_callback(self._send_outgoing)
        self._inference.detach()

"""Responses of the in-process API, and the two iterators that return them.

The engine calls `ReadRequest.send` on its own thread, which puts each response into the queue of an iterator; the
caller's thread takes it out. The engine must know how many responses were read, because it holds back a decoupled model
that responds faster than its caller reads. So the iterator reports each response that it returns (`confirm_read`), and
the report is posted to the engine's thread.

Three cases need care:

- The caller also gets the responses in its own queue (`InferenceRequest.response_queue`). Nothing reports when it
  reads that queue, so every response counts as read at once.
- The caller drops the iterator before the last response. `release` then reports all unread responses, and later ones
  count as read at once, or the model would stay held back forever.
- The engine's request is set on the engine's thread when `submit` returns. Responses may arrive earlier, so reports
  read it on the engine's thread, after that.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from naiad.engine.engine import Engine
from naiad.engine.open_request import OpenRequest
from naiad.protocol.inference import InferRequest, InferResponse
from naiad_embedded.inprocess.errors import TritonError, as_triton_error
from naiad_embedded.inprocess.request import NamedModel
from naiad_embedded.inprocess.tensor import Tensor

_ResponseConsumer: TypeAlias = Callable[["InferenceResponse"], object]


@dataclass
class InferenceResponse:
    """One response; a request to a decoupled model has any number of them.

    Attributes:
        model: The model, with the version that responded.
        request_id: The id of the request.
        parameters: The response's parameters.
        outputs: Tensors by output name. A large one refers to the shared memory of the model's process, which cannot
            use that memory for other tensors while the tensor exists.
        error: The response's error, or None.
        classification_label: Not used; part of the reference's API.
        final: Whether it is the last response. The last one of a decoupled model may be empty.
    """

    model: NamedModel
    request_id: str | None = None
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: TritonError | None = None
    classification_label: str | None = None
    final: bool = False


@dataclass(slots=True, eq=False)
class ReadRequest:
    """One submitted request: the engine's sink for its responses, and the way for an iterator to reach the engine."""

    _engine: Engine
    _post: Callable[..., object]
    _model: NamedModel
    _request_id: str | None
    opened: OpenRequest | None = None  # the engine's request; None until the engine has accepted it
    _consume: _ResponseConsumer | None = None  # None without a reader
    _unread: int = 0
    _counts_as_read: bool = False
    _is_complete: bool = False
    # Guards `_unread` and `_counts_as_read`, which the engine's thread and the caller's threads change.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def deliver_to(self, consume: _ResponseConsumer, *, counts_as_read: bool) -> None:
        """Set the consumer of responses, on the engine's thread, before `submit`."""
        self._consume = consume
        self._counts_as_read = counts_as_read

    def submit(self, request: InferRequest) -> None:
        self.opened = self._engine.submit(request, self)

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the protocol's signature
        self._is_complete = final
        if not final:
            with self._lock:
                counts_as_read = self._counts_as_read
                self._unread += not counts_as_read
            if counts_as_read:
                self._post(self._confirm_sent, 1)
        consume = self._consume
        if consume is not None:
            consume(self._to_inference_response(response, final=final))

    def confirm_read(self) -> None:
        """Report that one response has been read; not needed for the last one."""
        with self._lock:
            if not self._unread:
                return
            self._unread -= 1
        self._post(self._confirm_sent, 1)

    def release(self) -> None:
        """The iterator is dropped: report all responses as read, and drop those of the future."""
        with self._lock:
            if not self._counts_as_read:  # else the caller has a queue of its own, which gets them
                self._consume = None
            self._counts_as_read = True
            unread, self._unread = self._unread, 0
        if unread and not self._is_complete:
            self._post(self._confirm_sent, unread)

    def cancel(self) -> None:
        """Cancel the request. The first responses that a decoupled model sends afterwards can still be read."""
        if not self._is_complete:
            self._post(self._cancel)

    # These two run on the engine's thread, after `submit`.

    def _confirm_sent(self, count: int) -> None:
        assert self.opened is not None
        self.opened.confirm_sent(count)

    def _cancel(self) -> None:
        assert self.opened is not None
        self.opened.cancel(drops_responses=False)  # the caller may read on: what was sent by now

    def _to_inference_response(self, response: InferResponse | None, *, final: bool) -> InferenceResponse:
        if response is None:
            return InferenceResponse(self._model, self._request_id or "", final=final)
        converted = InferenceResponse(
            self._model._on_same_server(response.model_name, response.model_version),  # noqa: SLF001 - of this package
            response.request_id,
            dict(response.parameters),
            {output.name: Tensor._of_output(output) for output in response.outputs},  # noqa: SLF001 - of this package
            final=final,
        )
        if response.error is not None:
            converted.error = as_triton_error(response.error)
        return converted


class _ResponseReader:
    """The state that both iterators have: whether the last response was read, and the submitted request."""

    def __init__(self, request: ReadRequest, *, raise_on_error: bool) -> None:
        self.is_complete = False
        self._request = request
        self._raises = raise_on_error

    def read(self, response: InferenceResponse) -> InferenceResponse:
        """The response, reported to the engine as read."""
        self.is_complete = response.final
        if not response.final:
            self._request.confirm_read()
        if response.error is not None and self._raises:
            # Not the response's own exception, which would tie the response to the frames that it passes. As in the
            # reference, the second argument is the response.
            raise type(response.error)(*response.error.args, response)
        return response

    def cancel(self) -> None:
        self._request.cancel()

    def __del__(self) -> None:
        # The iterator alone refers to its reader, so this runs when the caller drops the iterator.
        self._request.release()


class ResponseIterator:
    """The responses of one request, in order; it can be iterated once."""

    def __init__(
        self,
        request: ReadRequest,
        copies: queue.SimpleQueue[InferenceResponse] | None = None,
        *,
        raise_on_error: bool = True,
    ) -> None:
        """Receive the responses of a request; *copies* gets each of them, too."""
        self._reader = _ResponseReader(request, raise_on_error=raise_on_error)
        self._responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
        consume = self._responses.put if copies is None else _call_both(self._responses.put, copies.put)
        request.deliver_to(consume, counts_as_read=copies is not None)

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._reader.is_complete:
            raise StopIteration
        return self._reader.read(self._responses.get())

    def cancel(self) -> None:
        """Cancel the request: it is dropped if it is still queued; otherwise the model may check for it and stop."""
        self._reader.cancel()


class AsyncResponseIterator:
    """The responses of one request, in order, on the caller's event loop; it can be iterated once."""

    def __init__(
        self,
        request: ReadRequest,
        copies: asyncio.Queue[InferenceResponse] | None = None,
        *,
        raise_on_error: bool = True,
    ) -> None:
        """Receive the responses of a request on the running event loop; *copies* gets each of them, too."""
        self._reader = _ResponseReader(request, raise_on_error=raise_on_error)
        self._responses: asyncio.Queue[InferenceResponse] = asyncio.Queue()
        consume = _AsyncQueueWriter(asyncio.get_running_loop(), self._responses, copies)
        request.deliver_to(consume, counts_as_read=copies is not None)

    def __aiter__(self) -> AsyncResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._reader.is_complete:
            raise StopAsyncIteration
        return self._reader.read(await self._responses.get())

    def cancel(self) -> None:
        """Cancel the request: it is dropped if it is still queued; otherwise the model may check for it and stop."""
        self._reader.cancel()


def _call_both(first: _ResponseConsumer, second: _ResponseConsumer) -> _ResponseConsumer:
    def consume(response: InferenceResponse) -> None:
        first(response)
        second(response)

    return consume


@dataclass(slots=True, eq=False)
class _AsyncQueueWriter:
    """Puts responses from the engine's thread into queues of another event loop.

    The iterator's own queue is unbounded. The caller's queue may have a bound; responses for which it has no room are
    kept here, in order, and a task of the caller's loop puts them as room becomes available.
    """

    _loop: asyncio.AbstractEventLoop
    _own: asyncio.Queue[InferenceResponse]
    _copies: asyncio.Queue[InferenceResponse] | None
    _pending: deque[InferenceResponse] = field(default_factory=deque)
    _task: asyncio.Task[None] | None = None

    def __call__(self, response: InferenceResponse) -> None:
        # The caller's loop may be closed while the model still responds, as after `asyncio.run`.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, response)

    def _put(self, response: InferenceResponse) -> None:
        self._own.put_nowait(response)
        if self._copies is None:
            return
        if not self._pending and not self._copies.full():
            self._copies.put_nowait(response)
            return
        self._pending.append(response)
        if self._task is None:
            self._task = self._loop.create_task(self._put_pending(self._copies))

    async def _put_pending(self, copies: asyncio.Queue[InferenceResponse]) -> None:
        while self._pending:
            await copies.put(self._pending[0])
            self._pending.popleft()
        self._task = None

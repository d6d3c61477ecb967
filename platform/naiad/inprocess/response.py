"""Responses of the in-process API, and the two iterators that hand them out.

The engine's thread makes responses and puts them into the queue of an iterator; the caller's thread takes them out and
tells the engine so, which holds a model back that answers faster than its caller reads.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from naiad.engine.door import EngineDoor
from naiad.inprocess.errors import TritonError, as_triton_error
from naiad.inprocess.request import NamedModel
from naiad.inprocess.tensor import Tensor
from naiad.protocol.inference import InferRequest, InferResponse

_Put: TypeAlias = Callable[["InferenceResponse"], object]

__all__ = ["AsyncResponseIterator", "InferenceResponse", "ResponseIterator", "Submission"]


@dataclass
class InferenceResponse:
    """One response; a request to a decoupled model may have any number of them.

    Attributes:
        model: Name and version that answered.
        request_id: The id the request came with.
        parameters: Parameters the model gave it.
        outputs: Tensors by the names of outputs. Large ones lie in the model's memory, which it cannot use for others
            for as long as they are referred to.
        error: What went wrong, if anything did.
        classification_label: Not used.
        final: Whether it is the last one. That of a decoupled model may be empty.
    """

    model: NamedModel
    request_id: str | None = None
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: TritonError | None = None
    classification_label: str | None = None
    final: bool = False


class Submission:
    """One request with the engine: the engine's sink, and the iterator's hold on it.

    Attributes:
        ticket: The engine's name for it; 0 until it has taken it.
    """

    def __init__(
        self,
        engine: EngineDoor,
        post: Callable[..., object],
        model: NamedModel,
        request_id: str | None,
    ) -> None:
        """Prepare one.

        Args:
            engine: Who takes it.
            post: Calls a function on the engine's thread, soon.
            model: Whom it asks.
            request_id: The caller's id of it.
        """
        self.ticket = 0
        self._engine = engine
        self._post = post
        self._model = model
        self._request_id = request_id
        self._deliver: _Put | None = None
        self._unread = 0
        self._is_released = False
        self._is_over = False
        self._lock = threading.Lock()

    def deliver_to(self, deliver: _Put, *, read_at_once: bool) -> None:
        """Hand responses to *deliver*, on the engine's thread; *read_at_once* if nobody tells when they are read."""
        self._deliver = deliver
        self._is_released = read_at_once

    def submit(self, request: InferRequest) -> None:
        """Hand the request to the engine; on its thread.

        Raises:
            NaiadError: If it is refused.
        """
        self.ticket = self._engine.submit(request, self)

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the protocol's signature
        """Take one response from the engine."""
        assert self._deliver is not None
        self._is_over = final
        if not final:
            with self._lock:
                is_released = self._is_released
                self._unread += not is_released
            if is_released:
                self._post(self._tell_taken, 1)
        self._deliver(self._made(response, final=final))

    def read(self) -> None:
        """Say that a response that was not the last one has been read."""
        with self._lock:
            if not self._unread:
                return
            self._unread -= 1
        self._post(self._tell_taken, 1)

    def release(self) -> None:
        """Hold the model back for this request no more: nobody tells when its responses are read."""
        with self._lock:
            self._is_released = True
            unread, self._unread = self._unread, 0
        if unread and not self._is_over:
            self._post(self._tell_taken, unread)

    def cancel(self) -> None:
        """Take the request back."""
        if not self._is_over:
            self._post(self._tell_cancelled)

    # These run on the engine's thread, where the ticket is known.

    def _tell_taken(self, count: int) -> None:
        self._engine.confirm_sent(self.ticket, count)

    def _tell_cancelled(self) -> None:
        self._engine.cancel(self.ticket)

    def _made(self, response: InferResponse | None, *, final: bool) -> InferenceResponse:
        if response is None:
            return InferenceResponse(self._model, self._request_id or "", final=final)
        made = InferenceResponse(
            self._model._answering(response.model_name, response.model_version),  # noqa: SLF001
            response.request_id,
            dict(response.parameters),
            {output.name: Tensor._of_output(output) for output in response.outputs},  # noqa: SLF001
            final=final,
        )
        if response.error is not None:
            made.error = as_triton_error(response.error)
            made.error.args += (made,)
        return made


class _Responses:
    """What both iterators do with a response that has come."""

    def __init__(self, submission: Submission, *, raise_on_error: bool) -> None:
        self._submission = submission
        self._raises = raise_on_error
        self._is_complete = False

    def _read(self, response: InferenceResponse) -> InferenceResponse:
        self._is_complete = response.final
        if not response.final:
            self._submission.read()
        if response.error is not None and self._raises:
            raise response.error
        return response

    def cancel(self) -> None:
        """Take the request back: it is dropped if it still waits, else the model may notice."""
        self._submission.cancel()

    def __del__(self) -> None:
        self._submission.release()


class ResponseIterator(_Responses):
    """The responses of one request, as they come. Not to be iterated twice."""

    def __init__(
        self,
        submission: Submission,
        copies: queue.SimpleQueue[InferenceResponse] | None = None,
        *,
        raise_on_error: bool = True,
    ) -> None:
        """Responses go to *copies*, too."""
        super().__init__(submission, raise_on_error=raise_on_error)
        self._responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
        deliver = self._responses.put if copies is None else _both(self._responses.put, copies.put)
        # Nobody can tell when what is in the other queue has been read.
        submission.deliver_to(deliver, read_at_once=copies is not None)

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_complete:
            raise StopIteration
        return self._read(self._responses.get())


class AsyncResponseIterator(_Responses):
    """The responses of one request on the event loop of whoever asked. Not to be iterated twice."""

    def __init__(
        self,
        submission: Submission,
        copies: asyncio.Queue[InferenceResponse] | None = None,
        *,
        raise_on_error: bool = True,
    ) -> None:
        """Responses go to *copies*, too. Must be made on the event loop that is to iterate it."""
        super().__init__(submission, raise_on_error=raise_on_error)
        self._responses: asyncio.Queue[InferenceResponse] = asyncio.Queue()
        deliver = _Handover(asyncio.get_running_loop(), self._responses, copies)
        submission.deliver_to(deliver, read_at_once=copies is not None)

    def __aiter__(self) -> AsyncResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._is_complete:
            raise StopAsyncIteration
        return self._read(await self._responses.get())


def _both(first: _Put, second: _Put) -> _Put:
    def put(response: InferenceResponse) -> None:
        first(response)
        second(response)

    return put


class _Handover:
    """Puts responses into a queue of another event loop, and into one of the caller's, which may have a bound."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        own: asyncio.Queue[InferenceResponse],
        copies: asyncio.Queue[InferenceResponse] | None,
    ) -> None:
        self._loop = loop
        self._own = own
        self._copies = copies
        self._late: deque[InferenceResponse] = deque()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, response: InferenceResponse) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._put, response)

    def _put(self, response: InferenceResponse) -> None:
        self._own.put_nowait(response)
        if self._copies is None:
            return
        if not self._late and not self._copies.full():
            self._copies.put_nowait(response)
            return
        self._late.append(response)
        if self._task is None:
            self._task = self._loop.create_task(self._put_late(self._copies))

    async def _put_late(self, copies: asyncio.Queue[InferenceResponse]) -> None:
        """Wait for room, in order."""
        while self._late:
            await copies.put(self._late[0])
            self._late.popleft()
        self._task = None

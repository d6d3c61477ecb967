"""Calls of a model to other models (BLS), through the host.

Inputs are copied once into the caller's output segment, results come in its input segment. Any number of threads and
coroutines may have calls under way; each thread that waits takes part in reading the channel.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Optional, Tuple

from naiad_stub import layout, standstill, wire
from naiad_stub.blocks import InputLease, OutputBlocks
from naiad_stub.call_messages import Texts, pack_call
from naiad_stub.channel import Channel, Waiter, running_loop
from naiad_stub.exceptions import API_MODULE, TritonError, TritonModelException
from naiad_stub.exchange import TensorWriter
from naiad_stub.messages import BlockedQuery, CancelCalls, DiscardResults, Notification, ResultsConsumed, pack
from naiad_stub.request import Calls, InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.tensor import Tensor

if TYPE_CHECKING:
    import asyncio

_COPY_LIMIT = 32 << 10
"""Results up to this many bytes are copied, so that their block is free at once."""
_TAKEN_RESULTS = 64
_TAKEN_BYTES = 1 << 20
"""After so many results, or bytes of them, the host is told that they were taken."""


class _Call:
    """One call under way.

    Attributes:
        number: Its number.
        arrived: Results that nobody took yet, as payloads of RESULT.
        is_ended: Whether the last one has arrived.
        waiter: Of the thread that waits for the next one.
        notify: Called as well, on the loop that awaits the next one.
        is_left: Whether nobody will take any more.
    """

    __slots__ = ("arrived", "is_ended", "is_left", "notify", "number", "waiter")

    def __init__(self, number: int) -> None:
        self.number = number
        self.arrived: deque[bytes] = deque()
        self.is_ended = self.is_left = False
        self.waiter: Optional[Waiter] = None
        self.notify: Optional[Callable[[], None]] = None


class CallDesk(Calls):
    """Makes the calls of one model.

    Attributes:
        is_open: Whether the model may call: after `initialize` and before `finalize`.
    """

    def __init__(self, channel: Channel, blocks: OutputBlocks, inputs: memoryview) -> None:
        self.is_open = False
        self._channel = channel
        self._inputs = inputs
        self._tensors = TensorWriter(blocks, ())
        self._kept: Dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._calls: Dict[int, _Call] = {}
        self._layouts: Dict[bytes, List[layout.Place]] = {}
        self._main = threading.main_thread().ident
        self._waiting: Dict[int, _Call] = {}  # by the thread that waits for it
        self.get_response_sender_of: Callable[[InferenceRequest], Any] = super().get_response_sender
        channel.handlers[wire.Kind.RESULT] = self._on_result  # undecoded: on the request path
        channel.add_handler(BlockedQuery, self._on_blocked_query)

    def get_response_sender(self, request: InferenceRequest) -> Any:
        """The sender that answers *request*."""
        return self.get_response_sender_of(request)

    def exec(self, request: InferenceRequest, decoupled: bool) -> Any:  # noqa: FBT001
        """Run *request* on its model and wait for the response; an iterator over responses if *decoupled*."""
        call = self._begin(request, wire.CALL_BLOCKING, decoupled=decoupled)
        if decoupled:
            return ResponseIterator._of(self, call)  # noqa: SLF001 - made for this
        try:
            self.wait(call)
        except BaseException:  # raised by a signal handler of the model: nobody will take the result
            self.leave(call)
            raise
        return self.next_of(call)[0]

    def async_exec(self, request: InferenceRequest, decoupled: bool) -> Awaitable[Any]:  # noqa: FBT001
        """The same as an awaitable; needs a running event loop, which takes part in reading the channel."""
        import asyncio  # whoever awaits has imported it

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        call = self._begin(request, wire.CALL_AWAITED, decoupled=decoupled)

        def arrived() -> None:
            if not future.done():
                future.set_result(
                    ResponseIterator._of(self, call) if decoupled else self.next_of(call)[0]  # noqa: SLF001 - likewise
                )

        def done(future: asyncio.Future[Any]) -> None:
            self._channel.unwatch(loop)
            if future.cancelled():
                self.cancel(call)
                self.leave(call)

        self._channel.watch(loop)
        future.add_done_callback(done)
        self.when_arrived(call, loop, arrived)
        return future

    # -- what iterators need --------------------------------------------------------------------------------------

    def when_arrived(self, call: _Call, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        """Have *then* called on *loop*, which is this thread's, as soon as a result is there."""

        def notify() -> None:
            if running_loop() is loop:
                then()
            else:
                try:
                    loop.call_soon_threadsafe(then)
                except RuntimeError:  # the loop is closed: nobody awaits it any more
                    self.leave(call)

        call.notify = notify
        if call.arrived or call.is_ended:
            call.notify = None
            then()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have *loop* read the channel until `unwatch`."""
        self._channel.watch(loop)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """End one `watch`."""
        self._channel.unwatch(loop)

    def wait(self, call: _Call) -> None:
        """Wait until a result is there or there will be none."""
        while not (call.arrived or call.is_ended):
            call.waiter = waiter = Waiter()
            if call.arrived or call.is_ended:
                return
            thread = threading.get_ident()
            self._waiting[thread] = call
            try:
                self._channel.wait(waiter)
            finally:
                self._waiting.pop(thread, None)

    def next_of(self, call: _Call) -> Tuple[InferenceResponse, int]:
        """Take the next result that is there, and its bytes."""
        return self._read(call.arrived.popleft())

    def taken(self, call: _Call, count: int) -> None:
        """Tell the host that the model has taken *count* more results."""
        if not call.is_ended:
            self._channel.send(pack(ResultsConsumed(call.number, count)))

    def cancel(self, call: _Call) -> None:
        """Tell the called model that the results are not wanted any more; they come until it ends."""
        if not call.is_ended:
            self._channel.post(pack(CancelCalls([call.number])))

    def leave(self, call: _Call) -> None:
        """Take no further results. Callable anywhere."""
        call.is_left = True
        if not call.is_ended:
            self._calls.pop(call.number, None)
            self._channel.post(pack(DiscardResults([call.number])))
        self._drop_results(call)

    # -- messages -------------------------------------------------------------------------------------------------

    def _begin(self, request: InferenceRequest, waits: int, *, decoupled: bool) -> _Call:
        if not self.is_open:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        if request._handle is not None:  # noqa: SLF001 - made for this
            raise TritonModelException("Only requests that the model made itself can be run on other models.")
        call = _Call(next(self._numbers))
        flags = wire.CALL_DECOUPLED if decoupled else 0
        if threading.get_ident() == self._main:
            flags |= waits
        texts = Texts(request)
        written = self._tensors.write(request._inputs)  # noqa: SLF001 - likewise
        self._calls[call.number] = call
        try:
            self._channel.send(pack_call(request, texts, call.number, flags, written))
        except BaseException:
            del self._calls[call.number]
            raise
        return call

    def _on_result(self, payload: bytes) -> None:
        """Take a RESULT; on whichever thread reads."""
        number, _, flags, _, _, _ = wire.RESULT_HEAD.unpack_from(payload)
        call = self._calls.get(number)
        if call is None:  # nobody looks at it any more
            self._give_back(payload)
            return
        call.arrived.append(payload)
        if flags & wire.FINAL:
            call.is_ended = True
            self._calls.pop(number, None)
        if call.is_left:  # by another thread, just now
            self._drop_results(call)
        notify, call.notify = call.notify, None
        if notify is not None:
            notify()
        waiter, call.waiter = call.waiter, None
        if waiter is not None:
            self._channel.finish(waiter)

    def _on_blocked_query(self, query: BlockedQuery) -> None:
        """Report whether every thread of the model is blocked; called on the thread that reads the channel."""
        is_blocked = standstill.is_reached(self._waiting)
        fields = {"number": str(query.number), "is_so": str(int(is_blocked))}
        self._channel.post(pack(Notification("standstill", fields)))

    def _drop_results(self, call: _Call) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._give_back(call.arrived.popleft())

    def _give_back(self, payload: bytes) -> None:
        block = wire.RESULT_HEAD.unpack_from(payload)[1]
        if block >= 0:
            self._channel.give_back(block)

    def _read(self, payload: bytes) -> Tuple[InferenceResponse, int]:
        _, block, flags, code, text_size, layout_size = wire.RESULT_HEAD.unpack_from(payload)
        start = wire.RESULT_HEAD.size
        middle = start + text_size
        text = str(payload[start:middle], "utf-8", "replace") if text_size else ""
        if flags & wire.ERROR:
            return InferenceResponse._received([], TritonError._received(text, code), ""), 0  # noqa: SLF001 - likewise
        if flags & wire.EMPTY:
            return InferenceResponse._received([], None, None), 0  # noqa: SLF001 - likewise
        end = middle + layout_size
        tensors, size = self._tensors_of(payload[middle:end], block, payload[end:])
        return InferenceResponse._received(tensors, None, text), size  # noqa: SLF001 - likewise

    def _tensors_of(self, data: bytes, block: int, inline: bytes) -> Tuple[List[Tensor], int]:
        places = self._layouts.get(data)
        if places is None:
            places = layout.unpack(data)[0]
            if len(self._layouts) >= layout.KEPT:
                self._layouts.clear()
            self._layouts[data] = places
        size = max([place.offset + place.size for place in places], default=0)
        lease = None
        if block < 0:
            view = memoryview(bytearray(inline))
        elif size <= _COPY_LIMIT:
            view = memoryview(bytearray(self._inputs[block : block + size]))
            self._channel.give_back_small(block)
        else:
            lease = InputLease(self._inputs)
            view = lease.view[block : block + size]
        tensors = [
            Tensor._received(name, code, shape, view[offset : offset + length])  # noqa: SLF001 - likewise
            for _, name, code, shape, offset, length in places
        ]
        if lease is not None:
            view = memoryview(b"")
            if lease.end(block, self._kept, self._channel.give_back) is None:
                self._channel.give_back(block)
        return tensors, size


class ResponseIterator:
    """The responses of a call to a decoupled model, in their order.

    Iterates as often as wanted: anew from the first once it was exhausted, else from where it was left. Also an
    asynchronous iterator, which leaves the event loop free while it waits.
    """

    __slots__ = ("_call", "_desk", "_position", "_responses", "_untold", "_untold_bytes")
    __module__ = API_MODULE

    _desk: CallDesk
    _call: _Call
    _responses: List[InferenceResponse]
    _position: int
    _untold: int
    _untold_bytes: int

    def __init__(self) -> None:
        raise TypeError("ResponseIterator: No constructor defined!")

    @classmethod
    def _of(cls, desk: CallDesk, call: _Call) -> ResponseIterator:
        self = cls.__new__(cls)
        self._desk = desk
        self._call = call
        self._responses = []
        self._position = 0
        self._untold = 0
        self._untold_bytes = 0
        return self

    def __iter__(self) -> ResponseIterator:
        if self._is_exhausted():
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._position == len(self._responses):
            self._desk.wait(self._call)
            if not self._call.arrived:
                raise StopIteration("Iteration is done for the responses.")
            self._take()
        self._position += 1
        return self._responses[self._position - 1]

    def __aiter__(self) -> ResponseIterator:
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        if self._position == len(self._responses) and not (self._call.arrived or self._call.is_ended):
            import asyncio

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._desk.watch(loop)
            self._desk.when_arrived(self._call, loop, lambda: None if future.done() else future.set_result(None))
            try:
                await future
            finally:
                self._desk.unwatch(loop)
        try:
            return self.__next__()
        except StopIteration:
            raise StopAsyncIteration from None

    def cancel(self) -> None:
        """Cancel the call; whether responses stop before their end is the called model's to decide."""
        self._desk.cancel(self._call)

    def _is_exhausted(self) -> bool:
        return self._position == len(self._responses) and self._call.is_ended and not self._call.arrived

    def _take(self) -> None:
        response, size = self._desk.next_of(self._call)
        self._responses.append(response)
        self._untold += 1
        self._untold_bytes += size
        if self._untold >= _TAKEN_RESULTS or self._untold_bytes >= _TAKEN_BYTES:
            self._desk.taken(self._call, self._untold)
            self._untold = self._untold_bytes = 0

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None:
            self._desk.leave(call)

"""Calls of a model to other models (BLS), through the host.

A call's inputs are copied once into the output segment (CALL); its results arrive in the input segment (RESULT). Any
number of threads and coroutines may have calls in progress. Each has a number, by which whichever thread reads the
channel files its results:

- A thread in `exec` waits on its call with `Channel.wait`, so it takes part in reading the channel.
- `async_exec` returns a future. The thread's event loop watches the channel's socket meanwhile.
- A `ResponseIterator` does either for each result, and reports in batches how many were consumed (RESULTS_CONSUMED).
  The host stops sending to a caller that consumes nothing.

A process that the model has forked calls in the same way, over a channel to this process (`forked_calls`).

Deadlocks: two models may wait for each other. The host looks for cycles of instances whose main threads wait for calls
(CALL_BLOCKING, CALL_AWAITED).
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Optional, Sequence, Tuple, Union

from naiad_stub import layout, wire
from naiad_stub.blocks import BorrowedBlock, KeptBlocks, OutputBlocks
from naiad_stub.channel import Channel, Waiter, running_loop
from naiad_stub.datatypes import BYTES
from naiad_stub.exceptions import API_MODULE, TritonError, TritonModelException
from naiad_stub.exchange import (
    DevicePlace,
    OutputUse,
    TensorWriter,
    Written,
    pack_block,
    place_on_device,
    read_device_places,
)
from naiad_stub.memo import Memo
from naiad_stub.messages import (
    CancelCalls,
    DiscardResults,
    ExportersEnded,
    ResultsConsumed,
    TakesDevice,
    pack,
)
from naiad_stub.primitives import allocate_lock, get_ident
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.runtime import ModelCalls
from naiad_stub.tensor import Tensor

if TYPE_CHECKING:
    import asyncio

_COPY_LIMIT = 32 << 10
"""Results up to this many bytes are copied out of their block, which is then free at once."""
_DRIVER = "naiad_stub.cuda.driver"
"""Imported once the process has used a tensor in GPU memory."""
_MAX_RELAYED_TENSORS = wire.MAX_RELAYED - (16 << 20)
"""Bytes of tensors in a message between a guest and a process that its model has forked, which has texts as well."""
_CALL_FLAGS, _CALL_BLOCKS, _CALL_CORRELATION_SIZE = 5, 7, 9
_CALL_SIZES = (8, 10, 11, 12, 13)
"""Positions in CALL_HEAD: of flags, of the number of blocks, of the size of a correlation id and of other sizes."""
_INTERNAL = 1
_REPORT_RESULTS = 64
_REPORT_BYTES = 1 << 20
"""Consumed results, and bytes of them, after which the host is sent RESULTS_CONSUMED."""


class PendingCall:
    """One call in progress.

    Attributes:
        number: Its number.
        arrived: Results that arrived and were not consumed, as payloads of RESULT.
        is_ended: Whether the last result has arrived.
        waiter: The thread that waits for the next result.
        notify: Called, as well, when the next result arrives; schedules what awaits it.
        is_discarded: Whether further results are discarded.
        wanted_on: Number of the GPU that its outputs should be on; less than 0 for none.
        channel: What it was sent on. In a child that the model forked, calls of the parent have the parent's, which is
            detached there.
    """

    __slots__ = ("arrived", "channel", "is_discarded", "is_ended", "notify", "number", "waiter", "wanted_on")

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.arrived: deque[bytes] = deque()
        self.is_ended = self.is_discarded = False
        self.wanted_on = -1
        self.waiter: Optional[Waiter] = None
        self.notify: Optional[Callable[[], None]] = None


class HostCalls(ModelCalls):
    """The calls of one model.

    Attributes:
        is_open: Whether the model may call: after `initialize` and before `finalize`.
    """

    def __init__(
        self, channel: Channel, blocks: OutputBlocks, inputs: memoryview, report_gpus: Callable[[], bool]
    ) -> None:
        self.is_open = False
        self._report_gpus = report_gpus
        self._channel = channel
        self._connect: Optional[Callable[[], Channel]] = None  # in a child that the model forked, gives it a channel
        self._is_connected = True
        self._connecting = allocate_lock()
        self._blocks = blocks
        self._inputs = inputs
        self._tensors = TensorWriter(blocks, ())
        self._kept = KeptBlocks(channel.release_input)
        self._numbers = itertools.count(1)
        self._calls: Dict[int, PendingCall] = {}
        self._layouts: Memo[bytes, List[layout.Place]] = Memo(layout.KEPT)
        self._main = get_ident()  # constructed on the main thread
        channel.handlers[wire.Kind.RESULT] = self._on_result  # as bytes: it is on the request path
        # Models that take inputs in GPU memory, by name and version.
        self._takers: Dict[Tuple[str, int], OutputUse] = {}
        channel.add_handler(TakesDevice, self._on_takes_device)
        channel.add_handler(ExportersEnded, _on_exporters_ended)

    def exec(self, request: InferenceRequest, decoupled: bool) -> Any:  # noqa: FBT001 - the API's signature
        """Run *request* on its model and wait for the response; an iterator over responses if *decoupled*."""
        call = self._start(request, wire.CALL_BLOCKING, decoupled=decoupled)
        if decoupled:
            return ResponseIterator._of(self, call)
        try:
            self.wait(call)
        except BaseException:  # raised by a signal handler of the model: the result has no reader
            self.discard(call)
            raise
        return self.next_result(call)[0]

    def async_exec(self, request: InferenceRequest, decoupled: bool) -> Awaitable[Any]:  # noqa: FBT001 - the signature of Triton
        """The same as an awaitable; needs a running event loop, which takes part in reading the channel."""
        import asyncio  # the caller has imported it already

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        call = self._start(request, wire.CALL_AWAITED, decoupled=decoupled)

        def on_arrival() -> None:
            if not future.done():
                future.set_result(ResponseIterator._of(self, call) if decoupled else self.next_result(call)[0])

        def on_done(future: asyncio.Future[Any]) -> None:
            call.channel.unwatch(loop)
            if future.cancelled():
                self.cancel(call)
                self.discard(call)

        call.channel.watch(loop)
        future.add_done_callback(on_done)
        self.call_on_arrival(call, loop, on_arrival)
        return future

    # -- what iterators need --------------------------------------------------------------------------------------

    def call_on_arrival(self, call: PendingCall, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        """Call *then* on *loop*, which must be this thread's, as soon as a result has arrived."""

        def notify() -> None:
            if running_loop() is loop:
                then()
            else:
                try:
                    loop.call_soon_threadsafe(then)
                except RuntimeError:  # the loop is closed: the result has no reader
                    self.discard(call)

        call.notify = notify
        if call.arrived or call.is_ended:
            call.notify = None
            then()

    def wait(self, call: PendingCall) -> None:
        """Wait until a result has arrived or there will be none."""
        while not (call.arrived or call.is_ended):
            call.waiter = waiter = Waiter()
            if call.arrived or call.is_ended:  # another thread read it before it could see the waiter
                return
            call.channel.wait(waiter)

    def next_result(self, call: PendingCall) -> Tuple[InferenceResponse, int]:
        """Consume the next result that has arrived; the response and its bytes."""
        result = self._read(call.arrived.popleft())
        if call.wanted_on >= 0:
            _upload(result[0], call.wanted_on)
        return result

    def report_consumed(self, call: PendingCall, count: int) -> None:
        """Tell the host that *count* more results were consumed, so that it may send more."""
        if not call.is_ended:
            call.channel.send(pack(ResultsConsumed(call.number, count)))

    def cancel(self, call: PendingCall) -> None:
        """Cancel the called model's request; its results arrive until it ends."""
        if not call.is_ended:
            call.channel.post(pack(CancelCalls([call.number])))

    def discard(self, call: PendingCall) -> None:
        """Discard all further results. Callable from finalizers."""
        call.is_discarded = True
        if not call.is_ended:
            self._calls.pop(call.number, None)
            call.channel.post(pack(DiscardResults([call.number])))
        self._release_results(call)

    def abandon(self, call: PendingCall) -> None:
        """Cancel a call, discard all its results and end it: a thread that waits for a result gets the end."""
        self.cancel(call)
        self.discard(call)
        call.is_ended = True
        waiter, call.waiter = call.waiter, None
        if waiter is not None:
            call.channel.finish(waiter)

    def start(self, request: InferenceRequest, prepare: Callable[[PendingCall], None]) -> PendingCall:
        """Start a call whose results the caller takes by `next_result`; any number of them may come.

        Args:
            request: What to run.
            prepare: Called with the call before it is sent, so before any result can arrive.

        Raises:
            TritonModelException: If the model cannot call now.
        """
        return self._start(request, wire.CALL_AWAITED, decoupled=True, prepare=prepare)

    # -- processes that the model has forked ----------------------------------------------------------------------

    def detach(self, connect: Callable[[], Channel]) -> None:
        """In a child that the model forked, call over the channel that *connect* returns, from the first call on."""
        self._channel.detach()
        self._connect = connect
        self._is_connected = False
        self._connecting = allocate_lock()
        self._calls = {}
        self.is_open = True  # the parent decides at each call

    def _start_in_child(
        self,
        connect: Callable[[], Channel],
        request: InferenceRequest,
        *,
        decoupled: bool,
        prepare: Optional[Callable[[PendingCall], None]],
    ) -> PendingCall:
        texts = CallTexts(request)
        written = self._tensors.write_inline(request._inputs)
        if written[-1] > _MAX_RELAYED_TENSORS:
            raise TritonModelException(
                f"cannot call model '{request._model_name}' from a forked process: its inputs have {written[-1]} "
                f"bytes, and at most {_MAX_RELAYED_TENSORS} can be sent; call it in the process that runs `execute`"
            )
        with self._connecting:
            if not self._is_connected:
                self._channel = connect()
                self._channel.handlers[wire.Kind.RESULT] = self._on_result
                self._is_connected = True
        call = PendingCall(next(self._numbers), self._channel)
        if prepare is not None:
            prepare(call)
        self._send(call, pack_call(request, texts, call.number, wire.CALL_DECOUPLED if decoupled else 0, written))
        return call

    def start_relayed(self, payload: bytes) -> PendingCall:
        """Make a call for a child, by the CALL that it has sent.

        Raises:
            TritonModelException: If the model cannot call now.
            HostGoneError: If the host has closed the channel.
        """
        if not self.is_open:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        head = list(wire.CALL_HEAD.unpack_from(payload))
        call = PendingCall(next(self._numbers), self._channel)
        head[0] = call.number
        sizes = [wire.CALL_HEAD.size, *[head[position] for position in _CALL_SIZES]]
        if head[_CALL_CORRELATION_SIZE] != wire.NO_STRING:
            sizes.append(head[_CALL_CORRELATION_SIZE])
        if head[_CALL_FLAGS] & wire.CALL_TRACED:
            sizes.append(wire.CALL_TRACE.size)
        tensors = memoryview(payload)[sum(sizes) :]
        texts = payload[wire.CALL_HEAD.size : sum(sizes)]
        if len(tensors) <= wire.INLINE_LIMIT:
            self._send(call, wire.frame(wire.Kind.CALL, b"".join((wire.CALL_HEAD.pack(*head), texts, tensors))))
            return call
        block = self._blocks.allocate(len(tensors))
        self._blocks.view[block : block + len(tensors)] = tensors
        head[_CALL_BLOCKS] = 1
        self._send(call, wire.frame(wire.Kind.CALL, b"".join((wire.CALL_HEAD.pack(*head), pack_block(block), texts))))
        return call

    def take_relayed(self, call: PendingCall, number: int) -> Optional[bytes]:
        """The next result of a call of `start_relayed`, as a frame for the child's call *number*; None at the end."""
        try:
            payload = call.arrived.popleft()
        except IndexError:
            return None
        head = list(wire.RESULT_HEAD.unpack_from(payload))
        head[0] = number
        _, block, _, _, _, text_size, layout_size = head
        end = wire.RESULT_HEAD.size + text_size + layout_size
        if block < 0:
            return wire.frame(wire.Kind.RESULT, wire.RESULT_HEAD.pack(*head) + payload[wire.RESULT_HEAD.size :])
        size = _end_of(self._places_of(payload[end - layout_size : end]))
        try:
            if size > _MAX_RELAYED_TENSORS:
                return error_result(
                    number,
                    f"cannot return the outputs of a model to a forked process: they have {size} bytes, and at most "
                    f"{_MAX_RELAYED_TENSORS} can be sent; call it in the process that runs `execute`",
                )
            head[1] = -1 - size
            texts = payload[wire.RESULT_HEAD.size : end]
            start = block & wire.BRIDGE_OFFSETS
            tensors = self._segment_of(block)[start : start + size]
            return wire.frame(wire.Kind.RESULT, b"".join((wire.RESULT_HEAD.pack(*head), texts, tensors)))
        finally:
            self._release_block(payload)

    # -- messages -------------------------------------------------------------------------------------------------

    def _start(
        self,
        request: InferenceRequest,
        waiting: int,
        *,
        decoupled: bool,
        prepare: Optional[Callable[[PendingCall], None]] = None,
    ) -> PendingCall:
        """Send CALL. *waiting* is the flag for a caller that waits on the main thread."""
        if not self.is_open:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        if request._handle is not None:
            raise TritonModelException("Only requests that the model made itself can be run on other models.")
        if self._connect is not None:
            return self._start_in_child(self._connect, request, decoupled=decoupled, prepare=prepare)
        call = PendingCall(next(self._numbers), self._channel)
        flags = wire.CALL_DECOUPLED if decoupled else 0
        if get_ident() == self._main:
            flags |= waiting
        preferred = request._preferred_memory
        is_wanted = preferred is not None and preferred._is_gpu
        if (is_wanted or _DRIVER in sys.modules) and self._report_gpus():
            flags |= wire.CALL_USES_DEVICE
            if preferred is None or is_wanted:
                flags |= wire.CALL_DEVICE_OUTPUTS
            if preferred is not None and is_wanted:
                call.wanted_on = preferred._device
        texts = CallTexts(request)
        bridges, model = self._blocks.bridges, (request._model_name, request._model_version)
        if bridges is not None:
            flags |= wire.CALL_BRIDGES
        written = self._tensors.write(
            request._inputs,
            self._takers.get(model) if self._takers else None,
            0 if bridges is None else bridges.number_to(*model),
        )
        if prepare is not None:
            prepare(call)
        self._send(call, pack_call(request, texts, call.number, flags, written))
        return call

    def _send(self, call: PendingCall, frame: bytes) -> None:
        self._calls[call.number] = call
        try:
            call.channel.send(frame)
        except BaseException:
            self._calls.pop(call.number, None)
            raise

    def _on_result(self, payload: bytes) -> None:
        """File a RESULT under its call; called on the thread that reads the channel."""
        number, _, _, flags, _, _, _ = wire.RESULT_HEAD.unpack_from(payload)
        call = self._calls.get(number)
        if call is None:  # discarded
            self._release_block(payload)
            return
        call.arrived.append(payload)
        if flags & wire.FINAL:
            call.is_ended = True
            self._calls.pop(number, None)
        if call.is_discarded:  # by another thread, since the look-up
            self._release_results(call)
        notify = call.notify
        if notify is not None:  # never cleared otherwise: another thread may have set it since
            call.notify = None
            notify()
        waiter, call.waiter = call.waiter, None
        if waiter is not None:
            call.channel.finish(waiter)

    def _on_takes_device(self, message: TakesDevice) -> None:
        model = message.model, message.version[0]
        if message.takes:
            gpus = None if message.gpus == "*" else frozenset(map(bytes.fromhex, message.gpus.split()))
            self._takers[model] = OutputUse(True, frozenset(), {}, gpus)
        else:
            self._takers.pop(model, None)

    def _release_results(self, call: PendingCall) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._release_block(call.arrived.popleft())

    def _release_block(self, payload: bytes) -> None:
        block = wire.RESULT_HEAD.unpack_from(payload)[1]
        if block >= 0:
            self._channel.release_input(block)

    def _read(self, payload: bytes) -> Tuple[InferenceResponse, int]:
        _, block, _, flags, code, text_size, layout_size = wire.RESULT_HEAD.unpack_from(payload)
        start = wire.RESULT_HEAD.size
        middle = start + text_size
        text = str(payload[start:middle], "utf-8", "replace") if text_size else ""
        if flags & wire.ERROR:
            return InferenceResponse._received([], TritonError._received(text, code), ""), 0
        if flags & wire.EMPTY:
            return InferenceResponse._received([], None, None), 0
        devices: Sequence[DevicePlace] = ()
        if flags & wire.DEVICE:
            devices, middle = read_device_places(payload, middle)
        end = middle + layout_size
        tensors, size = self._tensors_of(payload[middle:end], block, payload[end:], devices)
        return InferenceResponse._received(tensors, None, text), size

    def _segment_of(self, block: int) -> memoryview:
        """The memory that a block with results is in: a bridge, or the input segment."""
        bridge, bridges = block >> wire.BRIDGE_SHIFT, self._blocks.bridges
        return bridges.view(bridge) if bridge and bridges is not None else self._inputs

    def _places_of(self, data: bytes) -> List[layout.Place]:
        """The tensors that a packed layout describes."""
        places = self._layouts.get(data)
        if places is None:
            places = self._layouts[data] = layout.unpack(data)[0]
        return places

    def _tensors_of(
        self, data: bytes, block: int, inline: bytes, devices: Sequence[DevicePlace]
    ) -> Tuple[List[Tensor], int]:
        """The tensors of a layout in *block*, or in *inline* without a block; and the sum of their bytes."""
        places = self._places_of(data)
        size = _end_of(places)
        borrowed = None
        if block < 0:
            view = memoryview(bytearray(inline))
        elif size <= _COPY_LIMIT:
            view = memoryview(bytearray(self._inputs[block : block + size]))
            self._channel.release_small_input(block)
        else:
            borrowed = BorrowedBlock(self._segment_of(block))
            start = block & wire.BRIDGE_OFFSETS
            view = borrowed.view[start : start + size]
        tensors = [
            Tensor._received(name, code, shape, view[offset : offset + length])
            for _, name, code, shape, offset, length in places
        ]
        if devices:  # these have more bytes than are copied, so their block is borrowed
            place_on_device(tensors, devices, view)
        if borrowed is not None:
            view = memoryview(b"")  # ours must not count as a reference of the model's
            self._kept.add(block, borrowed.drop())
        return tensors, size


def _upload(response: InferenceResponse, ordinal: int) -> None:
    """Copy the outputs of *response* that are elsewhere to a GPU; where that is not possible, they stay."""
    tensors = response._outputs
    for position, tensor in enumerate(tensors):
        memory = tensor._device_memory()
        if memory is not None:
            from naiad_stub.cuda.driver import device_count

            if 1 < device_count() > ordinal:
                moved = memory.moved_to(ordinal)
                tensors[position] = Tensor._on_device(tensor._name, tensor._code, tensor._shape, moved)
            continue
        if tensor._code == BYTES:
            continue
        code, shape, data, size = tensor._payload()
        if not size:
            continue
        from naiad_stub.cuda.memory import uploaded

        try:
            tensors[position] = Tensor._on_device(tensor._name, code, shape, uploaded(data, ordinal))
        except TritonModelException:  # there is no driver, no such device, or too little memory
            return


def _end_of(places: Sequence[layout.Place]) -> int:
    """The bytes that tensors at *places* take up together."""
    return max([place.offset + place.size for place in places], default=0)


def error_result(number: int, message: str) -> bytes:
    """A RESULT frame that ends a child's call with an error."""
    text = message.encode("utf-8", "replace")
    flags = wire.FINAL | wire.ERROR
    return wire.frame(wire.Kind.RESULT, wire.RESULT_HEAD.pack(number, -1, -1, flags, _INTERNAL, len(text), 0) + text)


def _on_exporters_ended(message: ExportersEnded) -> None:
    sharing = sys.modules.get("naiad_stub.cuda.sharing")
    if sharing is not None:
        sharing.imports.end(message.numbers)


class CallTexts:
    """The texts of a call as bytes. Made first: what cannot be sent fails before tensors are copied."""

    __slots__ = ("correlation", "correlation_size", "correlation_text", "model", "outputs", "parameters", "request_id")

    def __init__(self, request: InferenceRequest) -> None:
        self.request_id = request._id.encode()
        self.correlation: Union[int, str] = request._correlation
        self.correlation_text, self.correlation_size = b"", wire.NO_STRING
        if isinstance(self.correlation, str):
            self.correlation_text = self.correlation.encode()
            self.correlation, self.correlation_size = 0, len(self.correlation_text)
        if max(len(self.request_id), len(self.correlation_text)) > wire.MAX_ID_BYTES:
            raise TritonModelException(f"request and correlation ids may have at most {wire.MAX_ID_BYTES} bytes")
        self.parameters = request._parameters.encode()
        if len(self.parameters) > wire.MAX_PARAMETERS:
            raise TritonModelException(
                f"the parameters of a request have {len(self.parameters)} bytes; at most {wire.MAX_PARAMETERS} can be "
                "sent"
            )
        self.model = request._model_name.encode()
        if len(self.model) > wire.MAX_ID_BYTES:
            raise TritonModelException(f"names of models may have at most {wire.MAX_ID_BYTES} bytes")
        self.outputs = "\0".join(dict.fromkeys(request._outputs)).encode()


def pack_call(request: InferenceRequest, texts: CallTexts, number: int, flags: int, written: Written) -> bytes:
    """The CALL frame of *request*, whose tensors `TensorWriter.write` has written."""
    own, count, blocks, data, inline, _ = written
    given = request._trace
    trace = b""
    if given is not None and given._key is not None:
        flags |= wire.CALL_TRACED
        trace = wire.CALL_TRACE.pack(given._key)
    head = wire.CALL_HEAD.pack(
        number,
        texts.correlation,
        request._timeout,
        request._flags,
        request._model_version,
        flags,
        own,
        count,
        len(texts.request_id),
        texts.correlation_size,
        len(texts.parameters),
        len(texts.model),
        len(texts.outputs),
        len(data),
    )
    body = b"".join(
        (
            head,
            blocks,
            trace,
            texts.request_id,
            texts.correlation_text,
            texts.parameters,
            texts.model,
            texts.outputs,
            data,
            inline,
        )
    )
    return wire.frame(wire.Kind.CALL, body)


class ResponseIterator:
    """The responses of a call to a decoupled model, in order.

    Can be iterated again: from the first response once it was exhausted, else from where the last iteration stopped.
    It is an asynchronous iterator as well, which leaves the event loop free while it waits.
    """

    __slots__ = ("__weakref__", "_call", "_calls", "_position", "_responses", "_unreported", "_unreported_bytes")
    __module__ = API_MODULE

    _calls: HostCalls
    _call: PendingCall
    _responses: List[InferenceResponse]
    _position: int
    _unreported: int
    _unreported_bytes: int

    def __init__(self) -> None:
        raise TypeError("ResponseIterator: No constructor defined!")

    @classmethod
    def _of(cls, calls: HostCalls, call: PendingCall) -> ResponseIterator:
        self = cls.__new__(cls)
        self._calls = calls
        self._call = call
        self._responses = []
        self._position = 0
        self._unreported = 0
        self._unreported_bytes = 0
        return self

    def __iter__(self) -> ResponseIterator:
        if self._is_exhausted():
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._position == len(self._responses):
            self._calls.wait(self._call)
            if not self._call.arrived:
                raise StopIteration("Iteration is done for the responses.")
            self._consume()
        self._position += 1
        return self._responses[self._position - 1]

    def __aiter__(self) -> ResponseIterator:
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        if self._position == len(self._responses) and not (self._call.arrived or self._call.is_ended):
            import asyncio

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            channel = self._call.channel
            channel.watch(loop)
            self._calls.call_on_arrival(self._call, loop, lambda: None if future.done() else future.set_result(None))
            try:
                await future
            finally:
                channel.unwatch(loop)
        try:
            return self.__next__()
        except StopIteration:
            raise StopAsyncIteration from None

    def cancel(self) -> None:
        """Cancel the call; the called model decides whether it ends its responses early."""
        self._calls.cancel(self._call)

    def _is_exhausted(self) -> bool:
        return self._position == len(self._responses) and self._call.is_ended and not self._call.arrived

    def _consume(self) -> None:
        response, size = self._calls.next_result(self._call)
        self._responses.append(response)
        self._unreported += 1
        self._unreported_bytes += size
        if self._unreported >= _REPORT_RESULTS or self._unreported_bytes >= _REPORT_BYTES:
            self._calls.report_consumed(self._call, self._unreported)
            self._unreported = self._unreported_bytes = 0

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None:
            self._calls.discard(call)

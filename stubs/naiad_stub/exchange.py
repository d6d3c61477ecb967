"""EXECUTE to requests, responses to RESPONSES: the two messages of the request path, and the tensors they refer to.

Inputs become views of the input segment. Outputs are copied once, into a block of the output segment, unless the model
wrote them there itself (`Tensor.allocate`). This is the path of every request, so it avoids work: heads are packed by
one `struct` each, layouts of tensors are unpacked and packed once and then found by their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, Optional, Set, Tuple

from naiad_stub import layout, wire
from naiad_stub.blocks import BorrowedBlock, OutputBlocks
from naiad_stub.datatypes import BYTES, Buffer, element_count
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.memo import Memo
from naiad_stub.request import InferenceRequest, InferenceTrace
from naiad_stub.response import InferenceResponse
from naiad_stub.segment import align
from naiad_stub.tensor import Tensor, decode_strings

if TYPE_CHECKING:
    from naiad_stub.bridges import Bridges

_Input = Tuple[str, int, Tuple[int, ...], int, int]
"""Name, datatype, shape, start and end within the block of an input."""
_Unpacked = Tuple[List[_Input], "Sequence[str]", "Sequence[str]", "Sequence[str]"]  # text, as 3.8 subscripts no ABC
"""Inputs of a layout, and names of outputs: those that the model sees as requested, those that are sent to the
host, and those that the client named."""
_Output = Tuple[str, int, Tuple[int, ...], int]
"""Name, datatype, shape and bytes of an output."""
DevicePlace = Tuple[int, bytes, bytes, int, int]
"""Position in the layout, UUID of the GPU, handle, number of the exporter, and offset, of a tensor in GPU memory."""
Written = Tuple[int, int, bytes, bytes, bytes, int]
"""Tensors written for the host: OWN_BLOCKS and DEVICE or 0, the number of their blocks, these as u64 each and the
handles of those in GPU memory, their layout, their bytes unless they are in blocks, and the number of bytes."""

_ONE_BLOCK = struct.Struct("<Q")
_NO_BYTES = memoryview(b"")
_HOST_FLAGS = 32
_MODEL_FLAGS = (1 << _HOST_FLAGS) - 1
_SMALL_DEVICE_BYTES = 64 << 10
"""Up to this many bytes in GPU memory, a copy in the process's own memory is cheaper than a block of the segment."""
_REPORTED_NAMES = 64
"""Limit on the undeclared outputs that are reported: a model may make up a name for each response."""
_MAX_BODY = wire.MAX_GUEST_FRAME // 2
"""Bytes of entries in one RESPONSES message, unless a single entry has more."""


def pack_block(block: int) -> bytes:
    """The blocks of tensors that are in one block, in CALL and RESPONSES."""
    return _ONE_BLOCK.pack(block)


class OutputUse:
    """Which outputs may be in GPU memory.

    Attributes:
        keeps_all: Whether all may stay there.
        kept: Names of those that may stay.
        places: Where others are to be written to, by name (`cuda.sharing.MemoryPlace`).
        readers: UUIDs of the GPUs whose memory their readers can use; None if that is not known.
    """

    __slots__ = ("keeps_all", "kept", "places", "readers")

    def __init__(
        self,
        keeps_all: bool,  # noqa: FBT001 - see the attributes
        kept: FrozenSet[str],
        places: Dict[str, Any],
        readers: Optional[FrozenSet[bytes]] = None,
    ) -> None:
        self.keeps_all = keeps_all
        self.kept = kept
        self.places = places
        self.readers = readers


KEEPS_ALL = OutputUse(True, frozenset(), {})


class RequestRecord:
    """The guest's record of one request: its handle in `InferenceRequest`.

    Attributes:
        key: The host's key of the request.
        requested: Names of the outputs to send: the requested ones, and states.
        named: Names of the outputs that the client asked for by name; empty if it wants all that the model returns.
        is_cancelled: Whether the host has said that the client cancelled the request or disconnected.
        device: Which of its outputs may be in GPU memory; None for none.
        bridge: The bridge for its outputs; 0 for none.
        has_sender: Whether the model has asked for its sender.
        closed_after: Number of responses that `execute` returned for it; None before it returned or raised.
        batch: The batch it came in.
        sender_state: Its responses so far (`naiad_stub.sender.SenderState`); None while only `execute` responds.
    """

    __slots__ = (
        "__weakref__",
        "batch",
        "bridge",
        "closed_after",
        "device",
        "has_sender",
        "is_cancelled",
        "key",
        "named",
        "requested",
        "sender_state",
    )

    def __init__(self, key: int, requested: Sequence[str], batch: Batch) -> None:
        self.key = key
        self.requested = requested
        self.named: Sequence[str] = ()
        self.batch = batch
        self.is_cancelled = self.has_sender = False
        self.device: Optional[OutputUse] = None
        self.bridge = 0
        self.closed_after: Optional[int] = None
        self.sender_state: Any = None


class Batch:
    """One EXECUTE message.

    Attributes:
        number: The host's number of the batch.
        block: The block its inputs are in; less than 0 without one.
        borrowed: The model's references to that block; None without one.
        shared: Its references to bridges, by number, 0 for the segment that frontend processes write to; None if no
            inputs are there.
        requests: The requests, in the host's order, without failed ones.
        records: Their records.
        failed: Entries of RESPONSES for requests whose inputs could not be read.
        started: When `execute` was called (monotonic ns).
    """

    __slots__ = ("block", "borrowed", "failed", "number", "records", "requests", "shared", "started")

    def __init__(self, number: int, block: int, borrowed: Optional[BorrowedBlock]) -> None:
        self.number = number
        self.block = block
        self.borrowed = borrowed
        self.shared: Optional[Dict[int, BorrowedBlock]] = None
        self.requests: List[InferenceRequest] = []
        self.records: List[RequestRecord] = []
        self.failed: Sequence[bytes] = ()
        self.started = 0


class BatchReader:
    """Decodes EXECUTE messages for one model.

    The host is trusted here: it checked every request before it wrote the bytes.

    Args:
        inputs: The input segment.
        input_names: Names that the host knows by their position.
        output_names: Names that the host knows by their position.
        state_names: Outputs that are states of sequences: sent even if they are not requested.
        shared: The segment that frontend processes write to, if there is one.
        takes_device: Whether the model takes inputs in GPU memory; asked when there are some.
        bridges: The bridges that it reads; None without any.
    """

    def __init__(
        self,
        inputs: memoryview,
        input_names: Sequence[str],
        output_names: Sequence[str],
        state_names: Sequence[str] = (),
        shared: memoryview = _NO_BYTES,
        takes_device: Callable[[], bool] = bool,
        bridges: Optional[Bridges] = None,
    ) -> None:
        self._takes_device = takes_device
        self._bridges = bridges
        self._inputs = inputs
        self._shared = shared
        self._input_names = input_names
        self._output_names = output_names
        self._state_names = state_names
        self._layouts: Memo[bytes, _Unpacked] = Memo(layout.KEPT)

    def read(self, payload: bytes) -> Batch:
        """The batch of one EXECUTE payload."""
        number, count, block = wire.EXECUTE_HEAD.unpack_from(payload)
        position = wire.EXECUTE_HEAD.size
        # A block less than 0 says that the inputs are in this message, and how many bytes they have: -1 - size.
        if block < 0:
            batch = Batch(number, block, None)
            end = position - 1 - block
            view = memoryview(bytearray(payload[position:end]))  # a model may write to its inputs
            position = end
        else:
            borrowed = BorrowedBlock(self._inputs)
            batch = Batch(number, block, borrowed)
            view = borrowed.view
        for _ in range(count):
            position = self._request(payload, position, batch, view)
        return batch

    def _request(self, payload: bytes, position: int, batch: Batch, segment: memoryview) -> int:
        key: int
        layout_size: int
        (
            key,
            correlation,
            timeout,
            flags,
            base,
            id_size,
            correlation_size,
            parameters_size,
            layout_size,
        ) = wire.REQUEST_HEAD.unpack_from(payload, position)
        position += wire.REQUEST_HEAD.size
        request_id = parameters = ""
        if id_size:
            request_id = str(payload[position : position + id_size], "utf-8")
            position += id_size
        # A correlation id is a number or a string. The head has room for a number. An empty string is a string as well,
        # so NO_STRING, not a length of 0, means that the id is a number.
        if correlation_size != wire.NO_STRING:
            correlation = str(payload[position : position + correlation_size], "utf-8")
            position += correlation_size
        if parameters_size:
            parameters = str(payload[position : position + parameters_size], "utf-8")
            position += parameters_size
        trace = None
        devices: Sequence[DevicePlace] = ()
        device: Optional[OutputUse] = None
        bridge = 0
        if flags >> _HOST_FLAGS:
            if flags & wire.TRACED:
                trace, position = _read_trace(key, payload, position)
            if flags & wire.SHARED_INPUTS:
                segment = self._shared_segment(batch, base >> wire.BRIDGE_SHIFT)
                base &= wire.BRIDGE_OFFSETS
            if flags & wire.DEVICE_INPUTS:
                devices, position = read_device_places(payload, position)
            if flags & wire.OUTPUT_PLACES:
                device, position = self._output_places(payload, position, bool(flags & wire.DEVICE_OUTPUTS))
            elif flags & wire.DEVICE_OUTPUTS:
                device = KEEPS_ALL
            if flags & wire.GPU_READERS and device is not None:
                readers, position = _read_readers(payload, position)
                device = OutputUse(device.keeps_all, device.kept, device.places, readers)
            if flags & wire.BRIDGE_OUTPUTS:
                (bridge,) = wire.BRIDGE_NUMBER.unpack_from(payload, position)
                position += wire.BRIDGE_NUMBER.size
            flags &= _MODEL_FLAGS
        end = position + layout_size
        data = payload[position:end]
        # Names, datatypes, shapes and offsets of most requests are those of an earlier one. Found by their bytes, they
        # cost one look-up; only the views into the segment are made for each request.
        tensors, requested, sent, named = self._layouts.get(data) or self._unpack(data)
        inputs = [
            Tensor._received(name, code, shape, segment[base + start : base + stop])
            for name, code, shape, start, stop in tensors
        ]
        if devices:
            problem = self._receive_from_device(inputs, devices, segment)
            if problem:
                batch.failed = [*batch.failed, error_entry(key, TritonError.INTERNAL, problem, wire.FINAL)]
                return end
        record = RequestRecord(key, sent, batch)
        if named:
            record.named = named
        if device is not None:
            record.device = device
        if bridge:
            record.bridge = bridge
        request = InferenceRequest._received(
            request_id, correlation, flags, timeout, inputs, requested, parameters, record
        )
        if trace is not None:
            request._trace = trace
        batch.requests.append(request)
        batch.records.append(record)
        return end

    def _shared_segment(self, batch: Batch, bridge: int) -> memoryview:
        """The memory of a bridge, which the batch refers to from now on."""
        if batch.shared is None:
            batch.shared = {}
        borrowed = batch.shared.get(bridge)
        if borrowed is None:
            assert not bridge or self._bridges is not None, "a guest without bridges is given none"
            view = self._bridges.view(bridge) if bridge and self._bridges is not None else self._shared
            borrowed = batch.shared[bridge] = BorrowedBlock(view)
        return borrowed.view

    def _output_places(self, payload: bytes, position: int, keeps_all: bool) -> tuple[OutputUse, int]:  # noqa: FBT001 - see `OutputUse`
        """Which outputs may be in GPU memory, from *position* in a message on; and the position after that."""
        from naiad_stub.cuda.sharing import MemoryPlace

        (count,) = wire.DEVICE_COUNT.unpack_from(payload, position)
        position += wire.DEVICE_COUNT.size
        end = position + count * wire.OUTPUT_PLACE.size
        places: Dict[str, Any] = {}
        kept = set()
        for index, *place in wire.OUTPUT_PLACE.iter_unpack(payload[position:end]):
            name = self._output_names[index]
            if place[2]:
                places[name] = MemoryPlace(*place)
            else:
                kept.add(name)
        return OutputUse(keeps_all, frozenset(kept), places), end

    def _receive_from_device(self, inputs: List[Tensor], places: Sequence[DevicePlace], lease: memoryview) -> str:
        """Replace or copy the *inputs* that are in GPU memory; why that is not possible, empty if it is.

        Few bytes, strings, and what a model takes on the CPU alone are copied to the room that the block has for them.
        """
        from naiad_stub.cuda.sharing import MemoryPlace, imported, read

        takes_device = self._takes_device()
        name = ""
        try:
            for position, uuid, handle, exporter, offset in places:
                hole = inputs[position]
                name, view = hole._name, hole._view
                assert view is not None
                place = MemoryPlace(uuid, handle, exporter, offset, len(view))
                if not place.size:
                    continue
                if takes_device and place.size > _SMALL_DEVICE_BYTES and hole._code != BYTES:
                    memory = imported(place, lease)
                    inputs[position] = Tensor._on_device(name, hole._code, hole._shape, memory)
                    continue
                read(place, memoryview(view))
                if hole._code == BYTES:  # the host could not look at them
                    decode_strings(view, element_count(hole._shape))
        except TritonModelException as error:
            return f"input '{name}': {error}"
        return ""

    def _unpack(self, data: bytes) -> _Unpacked:
        places, positions = layout.unpack(data)
        tensors = [
            (self._input_names[place.position], place.code, place.shape, place.offset, place.offset + place.size)
            for place in places
        ]
        named = () if positions is None else [self._output_names[position] for position in positions]
        requested = self._output_names if positions is None else named
        # The host needs the states, whichever outputs the client requested.
        sent = [*requested, *self._state_names] if self._state_names else requested
        unpacked = self._layouts[data] = tensors, requested, sent, named
        return unpacked


def _read_trace(key: int, payload: bytes, position: int) -> tuple[InferenceTrace, int]:
    """A request's trace, and the position after it."""
    (size,) = wire.TRACE_SIZE.unpack_from(payload, position)
    start = position + wire.TRACE_SIZE.size
    end = start + size
    return InferenceTrace._received(key, str(payload[start:end], "utf-8")), end


def _read_readers(payload: bytes, position: int) -> tuple[FrozenSet[bytes], int]:
    """UUIDs of GPUs from *position* in a message on; and the position after them."""
    (count,) = wire.DEVICE_COUNT.unpack_from(payload, position)
    start = position + wire.DEVICE_COUNT.size
    end = start + count * wire.GPU_UUID_SIZE
    return frozenset([payload[at : at + wire.GPU_UUID_SIZE] for at in range(start, end, wire.GPU_UUID_SIZE)]), end


def read_device_places(payload: bytes, position: int) -> tuple[Sequence[DevicePlace], int]:
    """Where tensors in GPU memory are, from *position* in a message on; and the position after that."""
    (count,) = wire.DEVICE_COUNT.unpack_from(payload, position)
    position += wire.DEVICE_COUNT.size
    end = position + count * wire.DEVICE_PLACE.size
    return list(wire.DEVICE_PLACE.iter_unpack(payload[position:end])), end


def place_on_device(tensors: List[Tensor], places: Sequence[DevicePlace], lease: object) -> None:
    """Replace the *tensors* that are in GPU memory; each keeps *lease* as long as it or its memory is in use."""
    from naiad_stub.cuda.sharing import MemoryPlace, imported

    for position, uuid, handle, exporter, offset in places:
        hole = tensors[position]
        assert hole._view is not None
        memory = imported(MemoryPlace(uuid, handle, exporter, offset, len(hole._view)), lease)
        tensors[position] = Tensor._on_device(hole._name, hole._code, hole._shape, memory)


class TensorWriter:
    """Writes tensors to the output segment, or to the message if they have few bytes, and packs their layout.

    Args:
        blocks: The blocks of the output segment.
        names: Names that the host knows by their position.
    """

    def __init__(self, blocks: OutputBlocks, names: Sequence[str]) -> None:
        self._blocks = blocks
        self._indices = {name: index for index, name in enumerate(names)}
        self._layouts: Memo[Any, tuple[bytes, list[int], int, bool]] = Memo(layout.KEPT)

    def write(self, tensors: Sequence[Tensor], device: Optional[OutputUse] = None, bridge: int = 0) -> Written:
        """Write *tensors*, by a copy unless they are in the segment already; to *bridge* if they have many bytes.

        Those in GPU memory are copied to the segment, unless *device* says that they may stay, or go to another place.

        Raises:
            TritonModelException: If they cannot be sent.
        """
        if device is not None and device.places:
            return self._write_each(tensors, device)
        described = []
        buffers = []
        # One pass describes the tensors and finds out whether one of them is in the segment or in GPU memory. That is
        # rare, and the work so far is thrown away.
        for tensor in tensors:
            if tensor._place is not None:
                return self._write_each(tensors, device)
            code, shape, buffer, size = tensor._payload_to_copy()
            described.append((tensor._name, code, shape, size))
            buffers.append(buffer)
        key = tuple(described)
        data, offsets, total, is_dense = self._layouts.get(key) or self._pack(key)
        # A few bytes cost less in the message than in a block: no page is touched, and no release has to come back.
        if total <= wire.INLINE_LIMIT:
            return 0, 0, b"", data, b"".join(buffers) if is_dense else _laid_out(buffers, offsets, total), total
        if bridge and total >= wire.BRIDGE_FROM:
            return self._write_to_bridge(bridge, buffers, data, offsets, total)
        block = self._blocks.allocate(total)
        segment = self._blocks.view
        for buffer, offset in zip(buffers, offsets):
            start = block + offset
            segment[start : start + len(buffer)] = buffer
        return 0, 1, _ONE_BLOCK.pack(block), data, b"", total

    def _write_to_bridge(
        self, bridge: int, buffers: Sequence[Buffer], data: bytes, offsets: Sequence[int], total: int
    ) -> Written:
        """Write to a bridge; to the segment if the bridge is full or closed."""
        bridges = self._blocks.bridges
        found = None if bridges is None else bridges.allocate(bridge, total)
        if found is None:
            own = self._blocks.allocate(total)
            found = own, self._blocks.view, own
        block, segment, begin = found
        for buffer, offset in zip(buffers, offsets):
            segment[begin + offset : begin + offset + len(buffer)] = buffer
        return 0, 1, _ONE_BLOCK.pack(block), data, b"", total

    def write_inline(self, tensors: Sequence[Tensor]) -> Written:
        """Write *tensors* to the message, however many bytes they have: for a process without a segment.

        Raises:
            TritonModelException: If they cannot be sent.
        """
        described = []
        buffers = []
        for tensor in tensors:
            code, shape, buffer, size = tensor._payload()
            described.append((tensor._name, code, shape, size))
            buffers.append(buffer)
        data, offsets, total, is_dense = self._pack(tuple(described))
        return 0, 0, b"", data, b"".join(buffers) if is_dense else _laid_out(buffers, offsets, total), total

    def _write_each(self, tensors: Sequence[Tensor], device: Optional[OutputUse]) -> Written:
        """The same with a block for each tensor: some are in a block (`Tensor.allocate`) or in GPU memory, or go there.

        Raises:
            PlaceError: If one does not fit into the place that it goes to.
            TritonModelException: If they cannot be sent.
        """
        places = {} if device is None else device.places
        if not places:
            tensors = [_on_cpu_if_small(tensor) for tensor in tensors]
            if all(tensor._place is None for tensor in tensors):
                return self.write(tensors)
        described = []
        payloads: List[Optional[Buffer]] = []  # None for GPU memory
        sizes = []  # of the blocks to allocate
        placed: List[bool] = []  # whether the tensor's own block is handed over
        exports = {} if device is None else self._export_each(tensors, device)
        written = set()  # positions of those that go to a place
        for position, tensor in enumerate(tensors):
            memory = tensor._device_memory()
            if memory is None:
                code, shape, buffer, size = tensor._payload()
                payloads.append(buffer)
            else:
                code, shape, size = tensor._code, tensor._shape, memory.size
                payloads.append(None)
            described.append((tensor._name, code, shape, size))
            if size and tensor._name in places:
                written.add(position)
                placed.append(True)
                continue
            # A model may return one tensor under two names. Its block can be handed over once; for the second name the
            # bytes are copied.
            is_placed = isinstance(tensor._place, int) and not any(other is tensor for other in tensors[:position])
            placed.append((is_placed and size > 0) or position in exports)
            if size and not placed[-1]:
                sizes.append(size)
        key = tuple(described)
        copies: List[int] = []
        try:
            data, *_ = self._layouts.get((key, True)) or self._pack(key, apart=True)
            copies = self._blocks.allocate_each(sizes)
            self._copy_each(tensors, payloads, placed, copies)
            for position in written:
                _write_to_place(tensors[position], payloads[position], places[tensors[position]._name])
        except BaseException:  # a GPU that failed
            self._blocks.release([*copies, *[block for block, _ in exports.values()]])
            raise
        # Only now, as from here on nothing fails.
        own = iter(copies)
        blocks = []
        for position, (tensor, is_placed, (_, _, _, size)) in enumerate(zip(tensors, placed, described)):
            if position in exports:
                blocks.append(exports[position][0])
            elif position in written:
                blocks.append(wire.WRITTEN_BLOCK)
            elif size:
                blocks.append(self._blocks.hand_over(tensor) if is_placed else next(own))
        total = sum([size for _, _, _, size in described])
        packed = struct.pack(f"<{len(blocks)}Q", *blocks) + b"".join([handle for _, handle in exports.values()])
        flags = wire.OWN_BLOCKS | wire.DEVICE if exports or written else wire.OWN_BLOCKS
        return flags, len(blocks), packed, data, b"", total

    def _export_each(self, tensors: Sequence[Tensor], device: OutputUse) -> Dict[int, tuple[int, bytes]]:
        """Export what is in GPU memory and may stay, as far as possible: blocks and handles by position, in order."""
        exports: Dict[int, tuple[int, bytes]] = {}
        try:
            for position, tensor in enumerate(tensors):
                memory = tensor._device_memory()
                if memory is None or memory.size <= _SMALL_DEVICE_BYTES or tensor._name in device.places:
                    continue
                if not device.keeps_all and tensor._name not in device.kept:
                    continue
                exported = self._blocks.export(memory, device.readers)
                if exported is not None:
                    exports[position] = exported
        except BaseException:  # a GPU that failed
            self._blocks.release([block for block, _ in exports.values()])
            raise
        return exports

    def _copy_each(
        self,
        tensors: Sequence[Tensor],
        payloads: Sequence[Optional[Buffer]],
        placed: Sequence[bool],
        blocks: Sequence[int],
    ) -> None:
        """Copy the tensors that are not *placed* into *blocks*, one for each that has bytes."""
        own = iter(blocks)
        for tensor, buffer, is_placed in zip(tensors, payloads, placed):
            if is_placed:
                continue
            if buffer is None:
                memory = tensor._device_memory()
                if memory is not None and memory.size:
                    self._blocks.copy_from_device(memory, next(own))
            elif len(buffer):
                block = next(own)
                self._blocks.view[block : block + len(buffer)] = buffer

    def _pack(self, outputs: tuple[_Output, ...], *, apart: bool = False) -> tuple[bytes, list[int], int, bool]:
        """The layout, the offsets and the bytes of outputs, and whether nothing is between them."""
        places = []
        total = 0
        for name, code, shape, size in outputs:
            if len(shape) > wire.MAX_DIMENSIONS:
                raise TritonModelException(
                    f"output '{name}' has {len(shape)} dimensions; tensors of at most {wire.MAX_DIMENSIONS} can be sent"
                )
            offset = 0 if apart else align(total)
            places.append(layout.Place(self._indices.get(name, wire.OTHER_NAME), name, code, shape, offset, size))
            total = offset + size
        size = sum(place.size for place in places)
        packed = layout.pack(places), [place.offset for place in places], total if size else 0, total == size
        self._layouts[(outputs, True) if apart else outputs] = packed
        return packed


def _write_to_place(tensor: Tensor, payload: Optional[Buffer], place: Any) -> None:
    """Write an output to the place that its request names.

    Raises:
        PlaceError: If that is not possible.
    """
    from naiad_stub.cuda.sharing import MemoryPlace, write

    memory = tensor._device_memory()
    source: Any = payload if memory is None else memory
    size = memory.size if memory is not None else len(source)
    if size > place.size:
        raise PlaceError(
            f"shared memory size specified with the request for output '{tensor._name}' ({place.size} bytes) should be "
            f"at least {size} bytes to hold the results"
        )
    try:
        write(MemoryPlace(place.uuid, place.handle, place.exporter, place.offset, size), source)
    except TritonModelException as error:
        raise PlaceError(f"output '{tensor._name}': {error}") from None


class PlaceError(TritonModelException):
    """An output cannot be written to the place that its request names: the client's fault, not the model's."""


def _on_cpu_if_small(tensor: Tensor) -> Tensor:
    """*tensor*, or a copy on the CPU if it has few bytes in GPU memory: those travel with the other small ones."""
    memory = tensor._device_memory()
    return tensor if memory is None or memory.size > _SMALL_DEVICE_BYTES else tensor._on_cpu()


def _laid_out(buffers: Sequence[Buffer], offsets: Sequence[int], size: int) -> bytes:
    """The bytes of a block with *buffers* at *offsets*."""
    block = bytearray(size)
    for buffer, offset in zip(buffers, offsets):
        block[offset : offset + len(buffer)] = buffer
    return bytes(block)


class ResponseWriter:
    """Encodes responses of one model as entries of RESPONSES.

    Args:
        blocks: The blocks of the output segment.
        output_names: Names that the host knows by their position.
        on_notice: Called with a sentence about an output of the model's responses, once for each name.
        is_decoupled: Whether each response may have a part of the outputs.
    """

    def __init__(
        self,
        blocks: OutputBlocks,
        output_names: Sequence[str],
        on_notice: Callable[[str], None],
        *,
        is_decoupled: bool = False,
    ) -> None:
        self._tensors = TensorWriter(blocks, output_names)
        self._on_notice = on_notice
        self._is_decoupled = is_decoupled
        self._declared = frozenset(output_names)
        self._undeclared: Set[str] = set()
        self._lacking: Set[str] = set()

    def response(self, record: RequestRecord, response: InferenceResponse, flags: int) -> tuple[bytes, int]:
        """One entry, and the bytes of its outputs; those not requested are dropped (PB src/infer_response.cc)."""
        error = response._error
        if error is not None:
            return error_entry(record.key, error.code(), error.message(), flags | wire.ANSWERED), 0
        text = response._parameters.encode() if response._parameters else b""
        if len(text) > wire.MAX_PARAMETERS:
            raise TritonModelException(
                f"the parameters of a response have {len(text)} bytes; at most {wire.MAX_PARAMETERS} can be sent"
            )
        # Dropped before they are written: an output that was not requested would cost a copy and a block.
        requested = record.requested
        tensors = [tensor for tensor in response._outputs if tensor._name in requested]
        if not len(tensors) == len(requested) == len(response._outputs):
            self._look_at_names(record, response)
        try:
            own, count, blocks, data, inline, size = self._tensors.write(tensors, record.device, record.bridge)
        except PlaceError as problem:
            return error_entry(record.key, TritonError.INTERNAL, str(problem), flags), 0
        head = wire.RESPONSE_HEAD.pack(record.key, flags | own, 0, count, len(text), len(data))
        return head + blocks + text + data + inline, size

    def _look_at_names(self, record: RequestRecord, response: InferenceResponse) -> None:
        """Report outputs that no client gets, and outputs that the client named and the model did not return.

        A client that names no outputs wants what the model returns: a model may leave some out, depending on its input.
        """
        names = {tensor._name for tensor in response._outputs}
        if not self._declared.issuperset(names) and len(self._undeclared) < _REPORTED_NAMES:
            room = _REPORTED_NAMES - len(self._undeclared)
            for name in sorted(names - self._declared - self._undeclared)[:room]:
                self._undeclared.add(name)
                self._on_notice(
                    f"a response has the output '{name}', which the configuration does not name, so that clients do "
                    "not get it; declare it in config.pbtxt, or remove it from the response"
                )
        if self._is_decoupled or names.issuperset(record.named):
            return
        for name in record.named:
            if name not in names and name not in self._lacking:
                self._lacking.add(name)
                self._on_notice(
                    f"a response lacks the output '{name}', which its client requested by name, so that the client "
                    "gets the other outputs and no error; return all requested outputs, or an error"
                )


def error_entry(key: int, code: int, message: str, flags: int) -> bytes:
    """One entry of RESPONSES with an error, whose text is bounded."""
    text = wire.bounded_text(message).encode("utf-8", "replace")
    return wire.RESPONSE_HEAD.pack(key, flags | wire.ERROR, code, 0, len(text), 0) + text


def mark_entry(key: int, flags: int) -> bytes:
    """One entry of RESPONSES without a response: a final mark, or RESCHEDULE."""
    return wire.RESPONSE_HEAD.pack(key, flags | wire.EMPTY, 0, 0, 0, 0)


def responses_frame(batch: Batch, entries: Sequence[bytes], flags: int, ended: int, reports: bytes = b"") -> bytes:
    """The RESPONSES frame of some entries of one batch; several frames if they are long.

    The last one has *flags* and *reports*, the packed reports that *flags* counts.
    """
    body = b"".join(entries)
    if len(body) > _MAX_BODY:
        return _responses_frames(batch, entries, flags, ended, reports)
    if reports:
        body += reports
    size = wire.RESPONSES_HEAD.size + len(body)
    return (
        wire.RESPONSES_FRAME.pack(size, wire.Kind.RESPONSES, 0, batch.number, len(entries), flags, batch.started, ended)
        + body
    )


def _responses_frames(batch: Batch, entries: Sequence[bytes], flags: int, ended: int, reports: bytes) -> bytes:
    frames = []
    part: List[bytes] = []
    size = 0
    for entry in entries:
        if part and size + len(entry) > _MAX_BODY:
            frames.append(_one_frame(batch, part, 0, ended))
            part, size = [], 0
        part.append(entry)
        size += len(entry)
    frames.append(_one_frame(batch, part, flags, ended, reports))
    return b"".join(frames)


def _one_frame(batch: Batch, entries: Sequence[bytes], flags: int, ended: int, reports: bytes = b"") -> bytes:
    head = wire.RESPONSES_HEAD.pack(batch.number, len(entries), flags, batch.started, ended)
    return wire.frame(wire.Kind.RESPONSES, head + b"".join(entries) + reports)

"""EXECUTE to requests, responses to RESPONSES: the two messages of the request path, and the bytes they point at.

Inputs become views of the input segment; outputs are copied once into a block of the output segment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Tuple

from naiad_stub import layout, wire
from naiad_stub.exceptions import TritonModelException
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.segment import align
from naiad_stub.tensor import Tensor

_Input = Tuple[str, int, Tuple[int, ...], int, int]
"""Name, datatype, shape, start and end within the block of an input."""
_Output = Tuple[str, int, Tuple[int, ...], int]
"""Name, datatype, shape and bytes of an output."""


class Ticket:
    """What ties a request to the host's: its key, and whether its sender still waits.

    Attributes:
        key: The host's key of the request.
        requested: Names of the outputs to send, as `InferenceRequest.requested_output_names` has them.
        is_cancelled: Set when the host says that nobody waits any more.
    """

    __slots__ = ("is_cancelled", "key", "requested")

    def __init__(self, key: int, requested: Sequence[str]) -> None:
        self.key = key
        self.requested = requested
        self.is_cancelled = False


class Batch:
    """One EXECUTE message.

    Attributes:
        number: The host's number of the batch.
        released: Offsets of output blocks that the host has read.
        requests: The requests, in the host's order.
        tickets: Their tickets.
    """

    __slots__ = ("number", "released", "requests", "tickets")

    def __init__(
        self, number: int, released: Sequence[int], requests: list[InferenceRequest], tickets: list[Ticket]
    ) -> None:
        self.number = number
        self.released = released
        self.requests = requests
        self.tickets = tickets


class BatchReader:
    """Decodes EXECUTE messages for one model.

    The host is trusted here: it checked every request before it laid the bytes out.
    """

    def __init__(self, inputs: memoryview, input_names: Sequence[str], output_names: Sequence[str]) -> None:
        self._inputs = inputs
        self._input_names = input_names
        self._output_names = output_names
        self._layouts: dict[bytes, tuple[list[_Input], Sequence[str]]] = {}

    def read(self, payload: bytes) -> Batch:
        """The batch of one EXECUTE payload."""
        number, count, released_count = wire.EXECUTE_HEAD.unpack_from(payload)
        position = wire.EXECUTE_HEAD.size
        released: Sequence[int] = ()
        if released_count:
            released = struct.unpack_from(f"<{released_count}Q", payload, position)
            position += 8 * released_count
        requests = []
        tickets = []
        for _ in range(count):
            request, ticket, position = self._request(payload, position)
            requests.append(request)
            tickets.append(ticket)
        return Batch(number, released, requests, tickets)

    def _request(self, payload: bytes, position: int) -> tuple[InferenceRequest, Ticket, int]:
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
        if correlation_size != wire.NO_STRING:
            correlation = str(payload[position : position + correlation_size], "utf-8")
            position += correlation_size
        if parameters_size:
            parameters = str(payload[position : position + parameters_size], "utf-8")
            position += parameters_size
        end = position + layout_size
        data = payload[position:end]
        tensors, requested = self._layouts.get(data) or self._unpack(data)
        segment = self._inputs
        inputs = [
            Tensor._received(name, code, shape, segment[base + start : base + stop])  # noqa: SLF001 - made for this
            for name, code, shape, start, stop in tensors
        ]
        ticket = Ticket(key, requested)
        request = InferenceRequest._received(  # noqa: SLF001 - likewise
            request_id, correlation, flags, timeout, inputs, requested, parameters, ticket
        )
        return request, ticket, end

    def _unpack(self, data: bytes) -> tuple[list[_Input], Sequence[str]]:
        places, positions = layout.unpack(data)
        tensors = [
            (self._input_names[place.position], place.code, place.shape, place.offset, place.offset + place.size)
            for place in places
        ]
        requested = (
            self._output_names if positions is None else [self._output_names[position] for position in positions]
        )
        if len(self._layouts) >= layout.KEPT:
            self._layouts.clear()
        self._layouts[data] = tensors, requested
        return tensors, requested


def part_released(payload: bytes) -> tuple[Sequence[int], bytes]:
    """The released output blocks of an EXECUTE payload, and the payload without them."""
    number, count, released_count = wire.EXECUTE_HEAD.unpack_from(payload)
    if not released_count:
        return (), payload
    end = wire.EXECUTE_HEAD.size + 8 * released_count
    released = memoryview(payload)[wire.EXECUTE_HEAD.size : end].cast("Q").tolist()
    return released, wire.EXECUTE_HEAD.pack(number, count, 0) + payload[end:]


class ResponseWriter:
    """Encodes responses of one model, copying outputs into the output segment.

    Args:
        outputs: The output segment as bytes.
        allocate: Reserves a block of the output segment, waiting for the host where it is full.
        output_names: Names of the configured outputs, in order.
    """

    def __init__(self, outputs: memoryview, allocate: Callable[[int], int], output_names: Sequence[str]) -> None:
        self._outputs = outputs
        self._allocate = allocate
        self._indices = {name: index for index, name in enumerate(output_names)}
        self._layouts: dict[tuple[_Output, ...], tuple[bytes, list[int], int]] = {}

    def response(self, ticket: Ticket, response: InferenceResponse, flags: int) -> bytes:
        """One entry of RESPONSES; outputs nobody asked for are dropped (PB src/infer_response.cc)."""
        error = response._error  # noqa: SLF001 - made for this
        if error is not None:
            return self.error(ticket, error.code(), error.message(), flags)
        text = response._parameters.encode() if response._parameters else b""  # noqa: SLF001 - likewise
        described = []
        buffers = []
        for tensor in response._outputs:  # noqa: SLF001 - likewise
            name = tensor._name  # noqa: SLF001 - likewise
            if name in ticket.requested:
                code, shape, buffer, size = tensor._payload()  # noqa: SLF001 - likewise
                described.append((name, code, shape, size))
                buffers.append(buffer)
        key = tuple(described)
        data, offsets, total = self._layouts.get(key) or self._pack(key)
        block = -1
        if total:
            block = self._allocate(total)
            segment = self._outputs
            for buffer, offset in zip(buffers, offsets):
                start = block + offset
                segment[start : start + len(buffer)] = buffer
        return wire.RESPONSE_HEAD.pack(ticket.key, block, flags, 0, len(text), len(data)) + text + data

    def error(self, ticket: Ticket, code: int, message: str, flags: int) -> bytes:
        """One entry of RESPONSES that says what went wrong."""
        text = message.encode("utf-8", "replace")
        return wire.RESPONSE_HEAD.pack(ticket.key, -1, flags | wire.ERROR, code, len(text), 0) + text

    def _pack(self, outputs: tuple[_Output, ...]) -> tuple[bytes, list[int], int]:
        places = []
        total = 0
        for name, code, shape, size in outputs:
            if len(shape) > wire.MAX_DIMENSIONS:
                raise TritonModelException(
                    f"output '{name}' has {len(shape)} dimensions; tensors of at most {wire.MAX_DIMENSIONS} can be sent"
                )
            offset = align(total)
            places.append(layout.Place(self._indices.get(name, wire.OTHER_NAME), name, code, shape, offset, size))
            total = offset + size
        packed = layout.pack(places), [place.offset for place in places], total if any(p.size for p in places) else 0
        if len(self._layouts) >= layout.KEPT:
            self._layouts.clear()
        self._layouts[outputs] = packed
        return packed

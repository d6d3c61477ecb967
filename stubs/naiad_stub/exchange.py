"""EXECUTE to requests, responses to RESPONSES: the two messages of the request path, and the bytes they point at.

Inputs become views of the input segment; outputs are copied once into a block of the output segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naiad_stub import wire
from naiad_stub.exceptions import TritonModelException
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.segment import align
from naiad_stub.tensor import Tensor


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

    def read(self, payload: memoryview) -> Batch:
        """The batch of one EXECUTE payload."""
        number, count, released_count = wire.EXECUTE_HEAD.unpack_from(payload)
        position = wire.EXECUTE_HEAD.size
        released: Sequence[int] = ()
        if released_count:
            end = position + 8 * released_count
            released = payload[position:end].cast("Q").tolist()
            position = end
        requests = []
        tickets = []
        for _ in range(count):
            request, ticket, position = self._request(payload, position)
            requests.append(request)
            tickets.append(ticket)
        return Batch(number, released, requests, tickets)

    def _request(self, payload: memoryview, position: int) -> tuple[InferenceRequest, Ticket, int]:
        head = wire.REQUEST_HEAD.unpack_from(payload, position)
        key, correlation, timeout, flags, inputs, outputs, id_size, correlation_size, parameters_size = head
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
        tensors = []
        for _ in range(inputs):
            tensor, position = self._tensor(payload, position)
            tensors.append(tensor)
        requested = self._output_names
        if outputs != wire.ALL_OUTPUTS:
            end = position + 2 * outputs
            requested = [self._output_names[index] for index in payload[position:end].cast("H")]
            position = end
        ticket = Ticket(key, requested)
        request = InferenceRequest._received(  # noqa: SLF001 - the process loop is the constructor's other half
            request_id, correlation, flags, timeout, tensors, requested, parameters, ticket
        )
        return request, ticket, position

    def _tensor(self, payload: memoryview, position: int) -> tuple[Tensor, int]:
        packer = wire.TENSOR[payload[position + 3]]
        values = packer.unpack_from(payload, position)
        offset, size = values[3], values[4]
        tensor = Tensor._received(  # noqa: SLF001 - likewise
            self._input_names[values[0]], values[1], values[5:], self._inputs[offset : offset + size]
        )
        return tensor, position + packer.size


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

    def response(self, ticket: Ticket, response: InferenceResponse, flags: int) -> bytes:
        """One entry of RESPONSES; outputs nobody asked for are dropped (PB src/infer_response.cc)."""
        error = response.error()
        if error is not None:
            return self.error(ticket, error.code(), error.message(), flags)
        text = response._parameters.encode() if response._parameters else b""  # noqa: SLF001 - see Tensor._payload
        payloads = []
        size = 0
        for tensor in response._outputs:  # noqa: SLF001
            if tensor._name in ticket.requested:  # noqa: SLF001
                payload = tensor._payload()  # noqa: SLF001
                payloads.append((tensor._name, payload))  # noqa: SLF001
                size = align(size) + payload[3]
        block = self._allocate(size) if size else -1
        parts = [wire.RESPONSE_HEAD.pack(ticket.key, block, flags, 0, len(payloads), len(text)), text]
        offset = max(block, 0)
        for name, (code, shape, buffers, nbytes) in payloads:
            offset = align(offset)
            self._copy(buffers, offset, nbytes)
            parts.append(self._describe(name, code, shape, offset, nbytes))
            offset += nbytes
        return b"".join(parts)

    def error(self, ticket: Ticket, code: int, message: str, flags: int) -> bytes:
        """One entry of RESPONSES that says what went wrong."""
        text = message.encode("utf-8", "replace")
        return wire.RESPONSE_HEAD.pack(ticket.key, -1, flags | wire.ERROR, code, 0, len(text)) + text

    def _copy(self, buffers: object, offset: int, size: int) -> None:
        if not size:
            return
        if isinstance(buffers, list):
            self._outputs[offset : offset + size] = b"".join(buffers)
        else:
            self._outputs[offset : offset + size] = memoryview(buffers).cast("B")  # type: ignore[arg-type]

    def _describe(self, name: str, code: int, shape: Sequence[int], offset: int, size: int) -> bytes:
        dimensions = len(shape)
        if dimensions > wire.MAX_DIMENSIONS:
            raise TritonModelException(
                f"output '{name}' has {dimensions} dimensions; tensors of at most {wire.MAX_DIMENSIONS} can be sent"
            )
        index = self._indices.get(name, wire.OTHER_NAME)
        packed = wire.TENSOR[dimensions].pack(index, code, dimensions, offset, size, *shape)
        if index == wire.OTHER_NAME:
            encoded = name.encode("utf-8", "replace")[: wire.MAX_ID_BYTES]
            packed += len(encoded).to_bytes(2, "little") + encoded
        return packed

"""Repeated requests: clients send the same message again and again, but for the bytes of its tensors.

A message ends with its raw tensors, one field each. Where all that is before them, and their sizes, are those of an
earlier message, what that meant is known: protobuf need not parse it, and the engine need not check it
(`protocol.inference.RequestPattern`). Responses of one layout have equal bytes around the tensors likewise.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from naiad.frontends.grpc import codec, framing
from naiad.frontends.grpc.service_pb2 import ModelInferRequest
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, InputTensor, RequestPattern

Message = bytes | bytearray

_KEPT = 256
_HEADS_KEPT = 64
_LONGEST_HEAD = 4096
_ALIKE = 8
"""How many of one length are kept: all of these are tried."""
_COPIED_TO = 4096
"""Tensors up to this many bytes are copied: that costs less than a view of them."""


class _Input(NamedTuple):
    """An input and where its bytes lie in the message.

    Attributes:
        name: Its name.
        datatype: Its datatype.
        shape: Its shape.
        prefix: The bytes of its field before its elements.
        start: Where its elements begin.
        end: Where they end.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    prefix: bytes
    start: int
    end: int


class MessagePattern:
    """What messages that differ in nothing but their tensors' bytes have in common.

    Attributes:
        model_name: The model.
        version: Its version, as in requests.
    """

    __slots__ = ("_head", "_inputs", "_outputs", "_pattern", "_responses", "model_name", "version")

    def __init__(self, head: bytes, request: InferRequest, inputs: list[_Input]) -> None:
        self.model_name = request.model_name
        self.version = request.model_version
        self._head = head
        self._inputs = inputs
        self._outputs = request.requested_outputs
        self._pattern = request.pattern = RequestPattern()
        self._responses: dict[object, list[bytes]] = {}

    def fits(self, data: Message) -> bool:
        """Whether a message, of the same length as the first, is one of these."""
        if not data.startswith(self._head):
            return False
        return all(data.startswith(prefix, start - len(prefix)) for _, _, _, prefix, start, _ in self._inputs)

    def request(self, data: Message) -> InferRequest:
        """The request that such a message is."""
        view = memoryview(data)
        inputs = [
            InputTensor(name, datatype, shape, data[start:end] if end - start <= _COPIED_TO else view[start:end])
            for name, datatype, shape, _, start, end in self._inputs
        ]
        return InferRequest(
            self.model_name, self.version, inputs, requested_outputs=self._outputs, pattern=self._pattern
        )

    def parts(self, response: InferResponse) -> list[Buffer]:
        """The message of a response, tensors as they are.

        Raises:
            NaiadError: Where the response is an error, or too long.
        """
        layout = response.layout
        if layout is None or response.error is not None or response.parameters or response.request_id:
            return codec.response_parts(response)
        around = self._responses.get(layout)
        if around is None:
            message = codec.response_parts(response)
            if len(self._responses) >= _HEADS_KEPT:
                self._responses.clear()
            self._responses[layout] = _around(b"".join(message), response)
            return message
        parts: list[Buffer] = []
        for before, tensor in zip(around, response.outputs):  # noqa: B905 - of one layout
            parts.append(before)
            if len(tensor.data):  # a view of zero bytes may have a shape that join refuses
                parts.append(tensor.data)
        return parts or [around[0]]


class MessagePatterns:
    """The patterns of the messages seen of late."""

    def __init__(self) -> None:
        self._patterns: dict[int, list[MessagePattern]] = {}

    def find(self, data: Message) -> MessagePattern | None:
        """The pattern that a message fits."""
        for pattern in self._patterns.get(len(data), ()):
            if pattern.fits(data):
                return pattern
        return None

    def learn(self, data: Message, message: codec.InferMessage, request: InferRequest) -> MessagePattern | None:
        """Remember a message that may come again, and what it meant; None for one that is particular."""
        body = message.body
        if body.id or body.parameters or any(tensor.parameters for tensor in body.inputs):
            return None
        if len(message.raw) != len(body.inputs):
            return None
        prefixes = [framing.field_head(codec.RAW_INPUTS, len(tensor.data)) for tensor in request.inputs]
        start = len(data) - sum(
            [len(prefix) + len(each.data) for prefix, each in zip(prefixes, request.inputs, strict=True)]
        )
        head = bytes(data[:start])
        if not (0 < start <= _LONGEST_HEAD and _is_all_but_tensors(head, body)):
            return None
        inputs = []
        for tensor, prefix in zip(request.inputs, prefixes, strict=True):
            start += len(prefix)
            end = start + len(tensor.data)
            inputs.append(_Input(tensor.name, tensor.datatype, tensor.shape, prefix, start, end))
            start = end
        pattern = MessagePattern(head, request, inputs)
        if len(self._patterns) >= _KEPT:
            self._patterns.clear()
        alike = self._patterns.setdefault(len(data), [])
        if len(alike) >= _ALIKE:
            del alike[0]
        alike.append(pattern)
        return pattern


def _is_all_but_tensors(head: bytes, body: ModelInferRequest) -> bool:
    """Whether a message's beginning is the message without raw tensors: fields may come in any order."""
    try:
        alone = ModelInferRequest.FromString(head)
    except DecodeError:
        return False
    return not alone.raw_input_contents and len(alone.inputs) == len(body.inputs)


def _around(message: bytes, response: InferResponse) -> list[bytes]:
    """The bytes before each tensor of a response's message, which ends with them; all of it if there is none."""
    if not response.outputs:
        return [message]
    sizes = [framing.size_of(tensor.data) for tensor in response.outputs]
    prefixes = [framing.field_head(codec.RAW_OUTPUTS, size) for size in sizes]
    start = len(message) - sum(map(len, prefixes)) - sum(sizes)
    return [message[:start] + prefixes[0], *prefixes[1:]]

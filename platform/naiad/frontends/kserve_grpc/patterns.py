"""Repeated requests: clients send the same message again and again, but for the bytes of its tensors.

A message ends with its raw tensors, one field each. Where all that is before them, and their sizes, are those of an
earlier message, what that meant is known: protobuf need not parse it, and the engine need not check it
(`protocol.request_plan.CheckedLayout`). Responses of one layout have equal bytes around the tensors likewise.
Clients that number their requests repeat themselves but for the id, which every protobuf writes behind the model's name
and version: it is left out of what is compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from google.protobuf.message import DecodeError
from naiad_stub.memo import Memo

from naiad.frontends.grpc.messages import size_of
from naiad.frontends.kserve_grpc import request_codec, response_codec, wire_format
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, InputTensor

Message = bytes | bytearray

_KEPT = 256
_HEADS_KEPT = 64
_LONGEST_HEAD = 4096
_ALIKE = 8
"""How many of one length are kept: all of these are tried."""
_COPIED_TO = 4096
"""Tensors up to this many bytes are copied: that costs less than a view of them."""
_NAME, _VERSION, _ID = (field << 3 | 2 for field in (1, 2, 3))
"""The tags of these fields, in requests and in responses."""
_ONE_BYTE = 0x7F
"""The longest field whose length takes one byte."""
_NO_ID = (0, 0)


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

    __slots__ = ("_head", "_inputs", "_layout_key", "_outputs", "_responses", "model_name", "version")

    def __init__(self, head: bytes, request: InferRequest, inputs: list[_Input]) -> None:
        self.model_name = request.model_name
        self.version = request.model_version
        self._head = head
        self._inputs = inputs
        self._outputs = request.requested_outputs
        self._layout_key = request.layout_key = object()
        self._responses: Memo[object, list[bytes]] = Memo(_HEADS_KEPT)

    def fits(self, data: Message, start: int, end: int) -> bool:
        """Whether a message is one of these, but for its id, which lies from *start* to *end*.

        The message is of the same length as the first, ids apart.
        """
        head, shift = self._head, end - start
        if shift:
            if not (data.startswith(head[:start]) and data.startswith(head[start:], end)):
                return False
        elif not data.startswith(head):
            return False
        return all(data.startswith(prefix, begin + shift - len(prefix)) for _, _, _, prefix, begin, _ in self._inputs)

    def request(self, data: Message, shift: int = 0, request_id: str = "") -> InferRequest:
        """The request that such a message is, whose id takes *shift* bytes."""
        view = memoryview(data)
        inputs = []
        for name, datatype, shape, _, start, end in self._inputs:
            source = data if end - start <= _COPIED_TO else view
            inputs.append(InputTensor(name, datatype, shape, source[start + shift : end + shift]))
        return InferRequest(
            self.model_name,
            self.version,
            inputs,
            request_id,
            requested_outputs=self._outputs,
            layout_key=self._layout_key,
        )

    def encode_response(self, response: InferResponse) -> list[Buffer]:
        """The message of a response, tensors as they are.

        Raises:
            NaiadError: Where the response is an error, or too long.
        """
        layout = response.layout
        if layout is None or response.error is not None or response.parameters:
            return response_codec.response_parts(response)
        around = self._responses.get(layout)
        if around is None:
            message = b"".join(response_codec.response_parts(replace(response, request_id="")))
            around = self._responses[layout] = _around(message, response)
        first = around[0]
        if response.request_id:
            place = _behind_version(first)
            if not place:
                return response_codec.response_parts(response)
            given = response.request_id.encode()
            first = b"".join((first[:place], wire_format.field_head(_ID >> 3, len(given)), given, first[place:]))
        parts: list[Buffer] = []
        for before, tensor in zip((first, *around[1:]), response.outputs):  # noqa: B905 - of one layout
            parts.append(before)
            if len(tensor.data):  # a view of zero bytes may have a shape that join refuses
                parts.append(tensor.data)
        return parts or [first]


class PatternMatch(NamedTuple):
    """A message that was recognised.

    Attributes:
        pattern: What it has in common with others.
        request: What it asks for.
    """

    pattern: MessagePattern
    request: InferRequest


class MessagePatterns:
    """The patterns of the messages seen of late."""

    def __init__(self) -> None:
        self._patterns: Memo[int, list[MessagePattern]] = Memo(_KEPT)

    def match(self, data: Message) -> PatternMatch | None:
        """The request that a message is, where it fits a pattern."""
        for pattern in self._patterns.get(len(data), ()):
            if pattern.fits(data, 0, 0):
                return PatternMatch(pattern, pattern.request(data))
        start, end = _id_place(data)
        if not start:
            return None
        for pattern in self._patterns.get(len(data) - (end - start), ()):
            if pattern.fits(data, start, end):
                try:
                    request_id = str(data[start + 2 : end], "utf-8")
                except UnicodeDecodeError:
                    return None
                return PatternMatch(pattern, pattern.request(data, end - start, request_id))
        return None

    def add(self, data: Message, message: request_codec.InferMessage, request: InferRequest) -> MessagePattern | None:
        """Remember a message that may come again, and what it meant; None for one that is particular."""
        body = message.body
        if body.parameters or any(tensor.parameters for tensor in body.inputs):
            return None
        id_start, id_end = _id_place(data) if body.id else _NO_ID
        if len(message.raw) != len(body.inputs):
            return None
        prefixes = [wire_format.field_head(request_codec.RAW_INPUTS, len(tensor.data)) for tensor in request.inputs]
        start = len(data) - sum(
            [len(prefix) + len(each.data) for prefix, each in zip(prefixes, request.inputs, strict=True)]
        )
        head = bytes(data[:id_start] + data[id_end:start])
        start -= id_end - id_start
        if not (0 < start <= _LONGEST_HEAD and _is_all_but_tensors(head, body)):
            return None
        inputs = []
        for tensor, prefix in zip(request.inputs, prefixes, strict=True):
            start += len(prefix)
            end = start + len(tensor.data)
            inputs.append(_Input(tensor.name, tensor.datatype, tensor.shape, prefix, start, end))
            start = end
        pattern = MessagePattern(head, request, inputs)
        length = len(data) - (id_end - id_start)
        alike = self._patterns.get(length)
        if alike is None:
            alike = self._patterns[length] = []
        if len(alike) >= _ALIKE:
            del alike[0]
        alike.append(pattern)
        return pattern


def _is_all_but_tensors(head: bytes, body: ModelInferRequest) -> bool:
    """Whether a message's beginning is the message without id and raw tensors: fields may come in any order."""
    try:
        alone = ModelInferRequest.FromString(head)
    except DecodeError:
        return False
    return not alone.id and not alone.raw_input_contents and len(alone.inputs) == len(body.inputs)


def _id_place(message: Message) -> tuple[int, int]:
    """From where to where the id's field lies, if that is where it usually is; else twice 0."""
    start = _behind_version(message)
    if not start or len(message) < start + 2 or message[start] != _ID or not 0 < message[start + 1] <= _ONE_BYTE:
        return _NO_ID
    return start, start + 2 + message[start + 1]


def _behind_version(message: Message) -> int:
    """Where the fields of a model's name and version end, with which requests and responses begin; 0 if they do not."""
    position = 0
    for tag in (_NAME, _VERSION):
        if len(message) > position + 1 and message[position] == tag:
            length = message[position + 1]
            if length > _ONE_BYTE:
                return 0
            position += 2 + length
    return position


def _around(message: bytes, response: InferResponse) -> list[bytes]:
    """The bytes before each tensor of a response's message, which ends with them; all of it if there is none."""
    if not response.outputs:
        return [message]
    sizes = [size_of(tensor.data) for tensor in response.outputs]
    prefixes = [wire_format.field_head(response_codec.RAW_OUTPUTS, size) for size in sizes]
    start = len(message) - sum(map(len, prefixes)) - sum(sizes)
    return [message[:start] + prefixes[0], *prefixes[1:]]

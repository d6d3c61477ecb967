"""Patterns of ModelInfer messages: requests that differ from an earlier one in the bytes of their tensors alone.

Clients repeat themselves. A request ends with its raw tensors, one field of `raw_input_contents` each; all bytes before
them, the *head*, say what is requested. A message whose head and tensor sizes equal those of an earlier one means the
same. Then protobuf need not parse it, and the engine need not check it: its `layout_key` is that of the earlier request
(`protocol.request_plan.CheckedLayout`). The same holds for responses: those of one layout have equal bytes around the
tensors.

Clients that number their requests repeat all but the id. Every implementation of protobuf writes fields in the order of
their numbers, so the id follows the model's name and version. It is left out of what is compared.

                  name  version  [id]  inputs, outputs ...   raw 0         raw 1
    a request:   |------------- head ---------------------| prefix|bytes | prefix|bytes |
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from google.protobuf.message import DecodeError
from naiad_stub.memo import Memo

from naiad.frontends.grpc.messages import Message
from naiad.frontends.http1.compression import size_of
from naiad.frontends.kserve_grpc import request_codec, response_codec, wire_format
from naiad.frontends.kserve_grpc.parameters import EMPTY_FINAL_RESPONSE
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, InputTensor

_MAX_LENGTHS = 256  # how many lengths of messages have patterns
_MAX_PATTERNS_PER_LENGTH = 8  # few, as each of them may be compared with a message of that length
_MAX_RESPONSE_LAYOUTS = 64
_MAX_RESPONSE_BYTES = 16 << 10  # of prefixes that one pattern keeps; there may be two thousand patterns
_MAX_HEAD = 4096  # bytes of the longest head that becomes a pattern
_MAX_JOINED = 1 << 20  # bytes of a response whose pattern is learned, from all of it; the pattern saves 10 us
_MAX_COPIED = 4096  # tensors of up to this many bytes are copied out of the message: a view costs more than that copy
_NAME, _VERSION, _ID = (field << 3 | 2 for field in (1, 2, 3))
"""Tags of the first fields: model_name, model_version and id have the same numbers in requests and responses."""
_MAX_ONE_BYTE_LENGTH = 0x7F  # the longest field whose length is a varint of one byte
_NO_ID = (0, 0)


class _Input(NamedTuple):
    """An input, and the bounds of its elements in the message without an id; *prefix* is tag and length before them."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    prefix: bytes
    start: int
    end: int


class MessagePattern:
    """What messages have in common that differ in their ids and the bytes of their tensors alone."""

    __slots__ = ("_head", "_inputs", "_layout_key", "_outputs", "_responses", "model_name", "version")

    def __init__(self, head: bytes, request: InferRequest, inputs: list[_Input]) -> None:
        self.model_name = request.model_name
        self.version = request.model_version
        self._head = head
        self._inputs = inputs
        self._outputs = request.requested_outputs
        self._layout_key = request.layout_key = object()
        # For each layout of responses: the bytes before each of the tensors.
        self._responses: Memo[object, list[bytes]] = Memo(_MAX_RESPONSE_LAYOUTS, _MAX_RESPONSE_BYTES)

    def matches(self, data: Message, id_start: int, id_end: int) -> bool:
        """Whether a message has this pattern. It must have the pattern's length, apart from its id.

        The prefixes of the tensors are compared too: a tensor's size may change at the expense of another's.
        """
        head, shift = self._head, id_end - id_start
        if isinstance(data, memoryview):
            return self._matches_view(data, id_start, id_end)
        if shift:
            if not (data.startswith(head[:id_start]) and data.startswith(head[id_start:], id_end)):
                return False
        elif not data.startswith(head):
            return False
        return all(data.startswith(prefix, begin + shift - len(prefix)) for _, _, _, prefix, begin, _ in self._inputs)

    def _matches_view(self, data: memoryview, id_start: int, id_end: int) -> bool:
        head, shift = self._head, id_end - id_start
        if bytes(data[:id_start]) + bytes(data[id_end : len(head) + shift]) != head:
            return False
        return all(
            bytes(data[begin + shift - len(prefix) : begin + shift]) == prefix
            for _, _, _, prefix, begin, _ in self._inputs
        )

    def request(self, data: Message, shift: int = 0, request_id: str = "") -> InferRequest:
        """The request of a message with this pattern, whose id takes *shift* bytes."""
        view = memoryview(data)
        inputs = []
        for name, datatype, shape, _, start, end in self._inputs:
            source = data if end - start <= _MAX_COPIED else view
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
        """The parts of a response's message; tensors are not copied. Raises the error of a response that is one."""
        layout = response.layout
        if layout is None or response.error is not None or response.parameters:
            return response_codec.encode_response(response)
        prefixes = self._responses.get(layout)
        if prefixes is None:
            if sum([size_of(tensor.data) for tensor in response.outputs]) > _MAX_JOINED:
                return response_codec.encode_response(response)
            message = b"".join(response_codec.encode_response(replace(response, request_id="")))
            prefixes = self._responses[layout] = _response_prefixes(message, response)
        first = prefixes[0]
        if response.request_id:
            at = _version_end(first)
            if not at:
                return response_codec.encode_response(response)
            request_id = response.request_id.encode()
            first = b"".join((first[:at], wire_format.field_head(_ID >> 3, len(request_id)), request_id, first[at:]))
        parts: list[Buffer] = []
        # Not strict: equal layouts have equal numbers of outputs, and without outputs there is one prefix.
        for prefix, tensor in zip((first, *prefixes[1:]), response.outputs):  # noqa: B905 - see the line above
            parts.append(prefix)
            if len(tensor.data):  # `join` rejects some shapes of views without bytes
                parts.append(tensor.data)
        return parts or [first]


class PatternMatch(NamedTuple):
    """A message that has a known pattern."""

    pattern: MessagePattern
    request: InferRequest


class MessagePatterns:
    """The patterns of recent messages."""

    def __init__(self) -> None:
        # By the length of their messages without ids.
        self._patterns: Memo[int, list[MessagePattern]] = Memo(_MAX_LENGTHS)

    def match(self, data: Message) -> PatternMatch | None:
        """The pattern and the request of a message; None for one without a known pattern."""
        for pattern in self._patterns.get(len(data), ()):
            if pattern.matches(data, 0, 0):
                return PatternMatch(pattern, pattern.request(data))
        start, end = _id_bounds(data)
        if not start:
            return None
        for pattern in self._patterns.get(len(data) - (end - start), ()):
            if pattern.matches(data, start, end):
                try:
                    request_id = str(data[start + 2 : end], "utf-8")
                except UnicodeDecodeError:
                    return None
                return PatternMatch(pattern, pattern.request(data, end - start, request_id))
        return None

    def add(self, data: Message, message: request_codec.InferMessage, request: InferRequest) -> MessagePattern | None:
        """Remember the pattern of a message that was parsed; None for a message that has none.

        Messages with parameters have none: parameters may differ in each request, and change how it is checked. But for
        one that clients in C++ always send, and that means nothing for a single response.
        """
        body = message.body
        if any(name != EMPTY_FINAL_RESPONSE for name in body.parameters):
            return None
        if any(tensor.parameters for tensor in body.inputs):
            return None
        if len(message.raw) != len(body.inputs):  # typed contents
            return None
        id_start, id_end = _id_bounds(data) if body.id else _NO_ID
        prefixes = [wire_format.field_head(request_codec.RAW_INPUTS, len(tensor.data)) for tensor in request.inputs]
        tensors_start = len(data) - sum(
            [len(prefix) + len(each.data) for prefix, each in zip(prefixes, request.inputs, strict=True)]
        )
        head = b"".join((data[:id_start], data[id_end:tensors_start]))
        position = tensors_start - (id_end - id_start)
        if not (0 < position <= _MAX_HEAD and _is_all_but_tensors(head, body)):
            return None
        inputs = []
        for tensor, prefix in zip(request.inputs, prefixes, strict=True):
            start = position + len(prefix)
            position = start + len(tensor.data)
            inputs.append(_Input(tensor.name, tensor.datatype, tensor.shape, prefix, start, position))
        pattern = MessagePattern(head, request, inputs)
        length = len(data) - (id_end - id_start)
        patterns = self._patterns.get(length)
        if patterns is None:
            patterns = self._patterns[length] = []
        if len(patterns) >= _MAX_PATTERNS_PER_LENGTH:
            del patterns[0]
        patterns.append(pattern)
        return pattern


def _is_all_but_tensors(head: bytes, body: ModelInferRequest) -> bool:
    """Whether *head* is the whole message but its id and raw tensors. A sender may put fields in any order."""
    try:
        parsed = ModelInferRequest.FromString(head)
    except DecodeError:
        return False
    return not parsed.id and not parsed.raw_input_contents and len(parsed.inputs) == len(body.inputs)


def _id_bounds(message: Message) -> tuple[int, int]:
    """The bounds of the id's field, if it is where every protobuf writes it; otherwise twice 0."""
    start = _version_end(message)
    if (
        not start
        or len(message) < start + 2
        or message[start] != _ID
        or not 0 < message[start + 1] <= _MAX_ONE_BYTE_LENGTH
    ):
        return _NO_ID
    return start, start + 2 + message[start + 1]


def _version_end(message: Message) -> int:
    """Where the model's name and version end, with which requests and responses begin; 0 if they do not."""
    position = 0
    for tag in (_NAME, _VERSION):
        if len(message) > position + 1 and message[position] == tag:
            length = message[position + 1]
            if length > _MAX_ONE_BYTE_LENGTH:
                return 0
            position += 2 + length
    return position


def _response_prefixes(message: bytes, response: InferResponse) -> list[bytes]:
    """The bytes before each tensor of a response's message; the whole message without tensors."""
    if not response.outputs:
        return [message]
    sizes = [size_of(tensor.data) for tensor in response.outputs]
    prefixes = [wire_format.field_head(response_codec.RAW_OUTPUTS, size) for size in sizes]
    tensors_start = len(message) - sum(map(len, prefixes)) - sum(sizes)
    return [message[:tensors_start] + prefixes[0], *prefixes[1:]]

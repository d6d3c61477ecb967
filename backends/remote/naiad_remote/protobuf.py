"""KServe v2's messages for gRPC, written and read without generated code, so that no release of protobuf is needed.

Field numbers are those of `grpc_service.proto` and `model_config.proto`. Unknown fields are skipped.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Iterator, List, Tuple, Union

from naiad_remote.wire import (
    DATATYPES,
    Buffer,
    Description,
    Parameter,
    TensorDescription,
    WireRequest,
    WireResponse,
    WireTensor,
)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 63


# -- writing ----------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are written as 64 bits
    out = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode()) if text else b""


def _parameter(name: str, value: Parameter) -> bytes:
    if isinstance(value, bool):
        encoded = b"\x08" + _varint(int(value))
    elif isinstance(value, int):
        encoded = b"\x10" + _varint(value) if value < 1 << 63 else b"\x28" + _varint(value)
    else:
        encoded = _field(3, value.encode())
    return _field(4, _field(1, name.encode()) + _field(2, encoded))


def encode_model(model: str, version: str) -> bytes:
    """ModelConfigRequest and ModelMetadataRequest."""
    return _text(1, model) + _text(2, version)


def encode_request(request: WireRequest, model: str, version: str) -> bytes:
    """ModelInferRequest."""
    parts: List[Buffer] = [_text(1, model), _text(2, version), _text(3, request.request_id)]
    parts += [_parameter(name, value) for name, value in request.parameters.items()]
    for tensor in request.inputs:
        shape = b"".join(_varint(size) for size in tensor.shape)
        parts.append(
            _field(5, _text(1, tensor.name) + _text(2, tensor.datatype) + (_field(3, shape) if shape else b""))
        )
    parts += [_field(6, _text(1, name)) for name in request.outputs]
    for tensor in request.inputs:
        parts.append(_varint(7 << 3 | _BYTES) + _varint(tensor.size))
        parts += tensor.parts
    return b"".join(parts)


# -- reading ----------------------------------------------------------------------------------------------------


def _read_varint(data: memoryview, position: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the last group of seven bits
            return value, position
        shift += 7
        if shift > _MAX_VARINT_BITS:
            raise ValueError("a number has more than 64 bits")


def _fields(data: memoryview) -> Iterator[Tuple[int, Union[int, memoryview]]]:
    """Number and value of each field; numbers of fixed size as their bytes."""
    position = 0
    try:
        while position < len(data):
            key, position = _read_varint(data, position)
            kind = key & 7
            if kind == _VARINT:
                value, position = _read_varint(data, position)
                yield key >> 3, value
                continue
            if kind == _BYTES:
                size, position = _read_varint(data, position)
            elif kind in {_FIXED64, _FIXED32}:
                size = 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"a field has the wire type {kind}")
            if position + size > len(data):
                raise ValueError("a field is longer than its message")
            yield key >> 3, data[position : position + size]
            position += size
    except IndexError:
        raise ValueError("a message ends in a number") from None


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _grouped(data: memoryview) -> Dict[int, List[Any]]:
    fields: Dict[int, List[Any]] = {}
    for number, value in _fields(data):
        fields.setdefault(number, []).append(value)
    return fields


def _string(fields: Dict[int, List[Any]], number: int) -> str:
    return bytes(fields[number][-1]).decode() if number in fields else ""


def _integers(values: List[Any]) -> Tuple[int, ...]:
    """A repeated integer, packed or not."""
    integers: List[int] = []
    for value in values:
        if isinstance(value, int):
            integers.append(_signed(value))
            continue
        position = 0
        while position < len(value):
            each, position = _read_varint(value, position)
            integers.append(_signed(each))
    return tuple(integers)


def _read_parameters(entries: List[memoryview]) -> Dict[str, Parameter]:
    parameters: Dict[str, Parameter] = {}
    for entry in entries:
        pair = _grouped(entry)
        value = _grouped(pair[2][-1]) if 2 in pair else {}  # noqa: PLR2004 - the number of the value's field
        name = _string(pair, 1)
        if 1 in value:
            parameters[name] = bool(value[1][-1])
        elif 2 in value:  # noqa: PLR2004 - int64_param
            parameters[name] = _signed(value[2][-1])
        elif 5 in value:  # noqa: PLR2004 - uint64_param
            parameters[name] = value[5][-1]
        elif 3 in value:  # noqa: PLR2004 - string_param
            parameters[name] = _string(value, 3)
    return parameters


def _checked(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Have *decode* raise ValueError where a field has another type than in the protocol."""

    @functools.wraps(decode)
    def checked(message: bytes) -> Any:
        try:
            return decode(message)
        except (TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"a field has another type than in the protocol: {error}") from None

    return checked


@_checked
def decode_response(message: bytes) -> WireResponse:
    """ModelInferResponse.

    Raises:
        ValueError: If it is malformed.
    """
    fields = _grouped(memoryview(message))
    return _response(fields)


def _response(fields: Dict[int, List[Any]]) -> WireResponse:
    described = [_grouped(each) for each in fields.get(5, ())]
    raw = fields.get(6, ())
    if len(raw) != len(described):
        raise ValueError(f"it has {len(described)} outputs and the raw contents of {len(raw)}")
    outputs = []
    for output, data in zip(described, raw):
        tensor = WireTensor(_string(output, 1), _string(output, 2), _integers(output.get(3, [])), [data])
        tensor.check()
        outputs.append(tensor)
    return WireResponse(outputs, _read_parameters(fields.get(4, [])))


@_checked
def decode_stream_response(message: bytes) -> Union[str, WireResponse]:
    """ModelStreamInferResponse: a response, or the text of an error.

    Raises:
        ValueError: If it is malformed.
    """
    fields = _grouped(memoryview(message))
    error = _string(fields, 1)
    return error or _response(_grouped(fields[2][-1]) if 2 in fields else {})  # noqa: PLR2004 - infer_response


@_checked
def decode_config(message: bytes) -> Description:
    """ModelConfigResponse.

    Raises:
        ValueError: If it is malformed.
    """
    outer = _grouped(memoryview(message))
    config = _grouped(outer[1][-1]) if 1 in outer else {}
    policy = _grouped(config[19][-1]) if 19 in config else {}  # noqa: PLR2004 - model_transaction_policy
    return Description(
        _integers(config.get(4, [0]))[-1],
        tuple(_described(_grouped(each), 4, 8) for each in config.get(5, ())),
        tuple(_described(_grouped(each), 3, 0) for each in config.get(6, ())),
        bool(policy.get(1, [0])[-1]),
    )


def _described(tensor: Dict[int, List[Any]], dims: int, optional: int) -> TensorDescription:
    code = tensor.get(2, [0])[-1]
    name = "INVALID" if not 0 < code < len(DATATYPES) else DATATYPES[code].replace("BYTES", "STRING")
    is_optional = bool(tensor.get(optional, [0])[-1]) if optional else False
    return TensorDescription(_string(tensor, 1), f"TYPE_{name}", _integers(tensor.get(dims, [])), is_optional)


@_checked
def decode_metadata(message: bytes) -> Description:
    """ModelMetadataResponse, whose shapes include the dimension of the batch, if there is one.

    Raises:
        ValueError: If it is malformed.
    """
    fields = _grouped(memoryview(message))
    tensors = []
    for number in (4, 5):
        described = []
        for each in fields.get(number, ()):
            tensor = _grouped(each)
            datatype = _string(tensor, 2).replace("BYTES", "STRING")
            described.append(TensorDescription(_string(tensor, 1), f"TYPE_{datatype}", _integers(tensor.get(3, []))))
        tensors.append(tuple(described))
    return Description(0, tensors[0], tensors[1], is_decoupled=False)

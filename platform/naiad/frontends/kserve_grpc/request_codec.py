"""Requests: bytes of a `ModelInferRequest` to the engine's `InferRequest`. Pure; nothing here knows the transport.

The order of checks and the texts are the reference's (SRV src/grpc/infer_handler.cc). Checks that need the model's
metadata (names, shapes, sizes) are the engine's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from google.protobuf.message import DecodeError

from naiad.core.errors import Code, InvalidRequestError, NaiadError
from naiad.frontends.grpc.messages import Message
from naiad.frontends.kserve_grpc import parameters, wire_format
from naiad.frontends.kserve_grpc.service_pb2 import InferParameter, InferTensorContents, ModelInferRequest
from naiad.frontends.regions import ClientRegions, TensorRegions
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.frontends.tensor_limits import MAX_DIMENSIONS, NO_LIMITS, TensorLimits
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import Buffer, InferRequest, InputTensor
from naiad.protocol.model_names import LATEST
from naiad.protocol.strings import pack_chunk

NO_REGIONS: TensorRegions = ClientRegions()

RAW_INPUTS = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER

LONG_MESSAGE = 64 * 1024
"""Messages from this size have their raw tensors cut out before protobuf parses them. For smaller ones, a walk over the
fields in Python costs more than the two copies that protobuf makes.

What is left without raw tensors is parsed on the event loop if it is below this size, which takes at most 5 ms; longer
ones, which contain typed tensors, are parsed in an offload process."""

_MAX_FIELDS = 2048  # top-level fields of a message that are walked on the event loop
_MAX_HEAD_FIELDS = 64  # the same before a message's only raw tensor: about one for each input and output
_NAME, _VERSION, _ID = (
    ModelInferRequest.MODEL_NAME_FIELD_NUMBER,
    ModelInferRequest.MODEL_VERSION_FIELD_NUMBER,
    ModelInferRequest.ID_FIELD_NUMBER,
)

_FEW_OUTPUTS = 16
_CHUNK = 1 << 16  # strings that are converted at once, so that what many of them need meanwhile is bounded
# Python refuses to convert more than 4,300 digits, and needs quadratic time for fewer.
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,100}\s*", re.ASCII)  # what C's `stol` accepts, as the reference
_INT64_MAX = 2**63 - 1

_REGION, _OFFSET, _SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"

_CONTENTS_FIELDS: tuple[tuple[str, tuple[Datatype, ...]], ...] = (
    ("bool_contents", (Datatype.BOOL,)),
    ("int_contents", (Datatype.INT32, Datatype.INT8, Datatype.INT16)),
    ("int64_contents", (Datatype.INT64,)),
    ("uint_contents", (Datatype.UINT32, Datatype.UINT8, Datatype.UINT16)),
    ("uint64_contents", (Datatype.UINT64,)),
    ("fp32_contents", (Datatype.FP32,)),
    ("fp64_contents", (Datatype.FP64,)),
    ("bytes_contents", (Datatype.BYTES,)),
)
"""Fields of `InferTensorContents` with the datatypes that each may hold; errors name the first. In the reference's
order, which decides what error comes first."""


@dataclass(slots=True)
class InferMessage:
    """A parsed `ModelInferRequest`."""

    body: ModelInferRequest  # the message; without the raw contents where these were cut out
    raw: Any  # The raw contents, in order. Any, because protobuf's container has no type that covers a list as well.


class LongHead(NamedTuple):
    """What is known of a message that is too long to be parsed on the event loop."""

    content: list[memoryview]  # the message, without its raw contents where these are known
    raw: list[memoryview] | None  # the raw contents, in order; None if they are in *content*
    body: ModelInferRequest  # the model's name and version, and the id


def parse(data: Message) -> InferMessage:
    """Parse the bytes of a `ModelInferRequest`; in an offload process, if they may be long."""
    message = parse_short(data) if len(data) >= LONG_MESSAGE else None
    if isinstance(message, InferMessage):
        return message
    try:
        body = ModelInferRequest.FromString(bytes(data))
    except DecodeError as error:
        raise _unparsable() from error
    return InferMessage(body, body.raw_input_contents)


def parse_short(data: Message) -> InferMessage | LongHead:
    """Parse a message of at least `LONG_MESSAGE` bytes if it is short without its raw contents."""
    try:
        outline = wire_format.outline(data, RAW_INPUTS, (_NAME, _VERSION, _ID), _MAX_FIELDS)
        if outline.is_complete and outline.kept_size < LONG_MESSAGE:
            return InferMessage(ModelInferRequest.FromString(b"".join(outline.kept)), outline.values)
    except (DecodeError, wire_format.WireFormatError) as error:
        raise _unparsable() from error
    name, version, request_id = (
        bytes(outline.texts.get(field, b"")).decode("utf-8", "replace") for field in (_NAME, _VERSION, _ID)
    )
    body = ModelInferRequest(model_name=name, model_version=version, id=request_id)
    if outline.is_complete:
        return LongHead(outline.kept, outline.values, body)
    return LongHead([memoryview(data)], None, body)


def find_raw_input(head: memoryview, size: int) -> tuple[str, int, int] | None:
    """Model, version, and where the only raw tensor begins, of a message of *size* bytes that ends with it.

    None if *head*, its first bytes, does not show that: every implementation of protobuf writes raw tensors last, but a
    sender may put fields in any order.
    """
    found = wire_format.find_last(head, size, RAW_INPUTS, (_NAME, _VERSION), _MAX_HEAD_FIELDS)
    if found is None:
        return None
    start, texts = found
    try:
        name, version = (str(texts.get(field, b""), "utf-8") for field in (_NAME, _VERSION))
        return name, parse_version(version), start
    except (UnicodeDecodeError, InvalidRequestError):
        return None


def _unparsable() -> NaiadError:
    return NaiadError("Unable to parse request", code=Code.INTERNAL)


def parse_version(text: str) -> int:
    """The number that the text of a version means; `LATEST` for an empty text."""
    if not text:
        return LATEST
    version = int(text) if _INTEGER.fullmatch(text) else None
    if version is None or version > _INT64_MAX:
        raise InvalidRequestError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise InvalidRequestError(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return version


def decode_request(
    message: InferMessage, version: int, regions: TensorRegions = NO_REGIONS, limits: TensorLimits = NO_LIMITS
) -> tuple[InferRequest, bool, RequestedOutputs | None]:
    """The request of a message, whether its stream ends with an empty final response, and outputs in another form."""
    body = message.body
    request = InferRequest(
        model_name=body.model_name,
        model_version=version,
        inputs=(),
        request_id=body.id,
    )
    enable_empty_final = False
    if body.parameters:
        enable_empty_final = parameters.decode(body.parameters, request)
    request.inputs, has_region_inputs = _decode_inputs(body, message.raw, regions, limits)
    requested = RequestedOutputs(has_region_inputs=True) if has_region_inputs else None
    if body.outputs:
        if len(body.outputs) > _FEW_OUTPUTS:
            limits.check_outputs([output.name for output in body.outputs], body.model_name)
        request.requested_outputs, requested = _decode_outputs(body, regions, requested)
    return request, enable_empty_final, requested


def _decode_inputs(
    body: ModelInferRequest, raw: Any, regions: TensorRegions, limits: TensorLimits
) -> tuple[list[InputTensor], bool]:
    """The inputs, and whether some are in regions."""
    has_region = False
    if limits is not NO_LIMITS:
        limits.check_inputs(len(body.inputs), body.model_name, body.id)
    inputs: list[InputTensor] = []
    raw_count = len(raw)
    next_raw = 0
    for tensor in body.inputs:
        region = _region_of(tensor.name, tensor.parameters) if tensor.parameters else None
        datatype = BY_NAME.get(tensor.datatype, Datatype.INVALID)
        data: Buffer
        if region is not None:
            if tensor.HasField("contents"):
                raise InvalidRequestError(
                    f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' for "
                    f"model '{body.model_name}'"
                )
            # Read before the request is checked (`frontends.region_inputs`).
            data = cast("Buffer", regions.part(*region))
            has_region = True
        elif tensor.HasField("contents"):
            if raw_count:
                raise InvalidRequestError(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{tensor.name}' for model '{body.model_name}'"
                )
            data = contents_to_bytes(tensor.contents, datatype, tensor.name, body.model_name)
        elif next_raw < raw_count:
            data = raw[next_raw]
            next_raw += 1
        else:
            raise InvalidRequestError(
                f"unable to find data for input tensor '{tensor.name}' for model '{body.model_name}' in request."
            )
        shape = tensor.shape
        if len(shape) > MAX_DIMENSIONS:
            raise InvalidRequestError(
                f"cannot use the shape of input '{tensor.name}': it has {len(shape)} dimensions; at most "
                f"{MAX_DIMENSIONS} are supported"
            )
        inputs.append(InputTensor(tensor.name, datatype, tuple(shape), data))
    return inputs, has_region


def _decode_outputs(
    body: ModelInferRequest, regions: TensorRegions, requested: RequestedOutputs | None
) -> tuple[list[str], RequestedOutputs | None]:
    """Names of the requested outputs, and the special forms they are requested in, added to those in *requested*."""
    names: dict[str, None] = {}  # in order, and looked up for each output
    requested = requested or RequestedOutputs()
    for output in body.outputs:
        if output.name in names:
            raise InvalidRequestError(f"output '{output.name}' already exists in request")
        names[output.name] = None
        if output.parameters:
            _decode_output(output.name, output.parameters, requested, regions)
    return list(names), requested or None


def _decode_output(
    name: str, given: Mapping[str, InferParameter], requested: RequestedOutputs, regions: TensorRegions
) -> None:
    region = _region_of(name, given)
    if "classification" in given:
        classification = given["classification"]
        if classification.WhichOneof("parameter_choice") != "int64_param":
            raise InvalidRequestError("invalid value type for 'classification' parameter, expected int64_param")
        if classification.int64_param <= 0:
            raise InvalidRequestError("invalid value for 'classification' parameter, expected >= 0")
        if region is not None:
            raise InvalidRequestError("output can't set both 'shared_memory_region' and 'classification'")
        requested.classes[name] = classification.int64_param
    elif region is not None:
        requested.regions[name] = regions.part(*region)


def _region_of(tensor: str, given: Mapping[str, InferParameter]) -> tuple[str, int, int] | None:
    """The shared memory region, offset and size of a tensor; None for a tensor outside of shared memory."""
    region, offset, size = (
        _parameter(tensor, given, key, kind)
        for key, kind in ((_REGION, "string_param"), (_OFFSET, "int64_param"), (_SIZE, "int64_param"))
    )
    if region is None:
        for key, value in ((_OFFSET, offset), (_SIZE, size)):
            if value is not None:
                raise InvalidRequestError(
                    f"'{key}' can not be specified without '{_REGION}' parameter for tensor '{tensor}'"
                )
        return None
    if size is None:
        raise InvalidRequestError(f"'{_SIZE}' must be specified along with '{_REGION}' parameter for tensor '{tensor}'")
    # The reference reads a negative size as a huge unsigned one, which exceeds any region.
    return str(region), int(offset or 0), int(size) if int(size) >= 0 else 1 << 64


def _parameter(tensor: str, given: Mapping[str, InferParameter], key: str, kind: str) -> str | int | None:
    if key not in given:
        return None
    parameter = given[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidRequestError(f"invalid value type for '{key}' parameter for tensor '{tensor}', expected {kind}.")
    value: str | int = getattr(parameter, kind)
    return value


def contents_to_bytes(contents: InferTensorContents, datatype: Datatype, input_name: str, model_name: str) -> bytes:
    """Typed elements as the little-endian bytes that tensors have everywhere else; empty where all fields are."""
    data = b""
    for field, datatypes in _CONTENTS_FIELDS:
        elements = getattr(contents, field)
        if not elements:
            continue
        _check_contents(data, datatype, datatypes, input_name, model_name)
        data = _serialize(elements, datatype)
    return data


def _check_contents(
    data: bytes, datatype: Datatype, datatypes: Sequence[Datatype], input_name: str, model_name: str
) -> None:
    where = f"unexpected explicit tensor data for input tensor '{input_name}' for model '{model_name}'"
    if data:
        raise InvalidRequestError(f"{where}, binary data was already supplied.")
    if datatype not in datatypes:
        expected = "<invalid>" if datatype is Datatype.INVALID else datatype.name
        raise InvalidRequestError(f"{where} of type '{datatypes[0].name}', expected datatype '{expected}'")


def _serialize(elements: Sequence[int] | Sequence[float] | Sequence[bytes], datatype: Datatype) -> bytes:
    if datatype is Datatype.BYTES:
        return _serialize_strings(elements)  # type: ignore[arg-type] # the field holds bytes: `_check_contents` matched it with the datatype
    import numpy as np  # not at the top: the host starts without numpy, see `protocol.numpy_types`

    target = datatype.numpy
    assert target is not None, f"{datatype.name} has no typed contents"
    # Protobuf has no integers below 32 bits. Larger values lose their upper bytes, as in the reference.
    wide = np.dtype(f"<{target.kind}4") if target.kind in "iu" and target.itemsize < 4 else target  # noqa: PLR2004 - bytes of protobuf's smallest integers
    return np.fromiter(elements, wide, len(elements)).astype(target, copy=False).tobytes()


def _serialize_strings(elements: Sequence[bytes]) -> bytes:
    if len(elements) <= _CHUNK:
        return pack_chunk(elements)
    return b"".join([pack_chunk(elements[start : start + _CHUNK]) for start in range(0, len(elements), _CHUNK)])

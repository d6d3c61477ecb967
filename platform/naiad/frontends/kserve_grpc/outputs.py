"""Requested outputs of a message, and the parameters that put a tensor into a region of shared memory."""

from __future__ import annotations

from collections.abc import Mapping

from naiad.errors import InvalidRequestError
from naiad.frontends.kserve_grpc.service_pb2 import InferParameter, ModelInferRequest
from naiad.frontends.regions import ClientRegions
from naiad.frontends.requested_outputs import RequestedOutputs

_REGION, _OFFSET, _SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


def decode(body: ModelInferRequest, regions: ClientRegions) -> tuple[list[str], RequestedOutputs | None]:
    """Names of the requested outputs, and the special forms they are requested in.

    Raises:
        NaiadError: If an output is named twice, or its parameters are wrong.
    """
    names: list[str] = []
    requested = RequestedOutputs()
    for output in body.outputs:
        if output.name in names:
            raise InvalidRequestError(f"output '{output.name}' already exists in request")
        names.append(output.name)
        if output.parameters:
            _decode_one(output.name, output.parameters, requested, regions)
    return names, requested or None


def _decode_one(
    name: str, given: Mapping[str, InferParameter], requested: RequestedOutputs, regions: ClientRegions
) -> None:
    region = region_of(name, given)
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
        requested.regions[name] = regions.output_region(*region)


def region_of(tensor: str, given: Mapping[str, InferParameter]) -> tuple[str, int, int] | None:
    """Region, offset and size of a tensor; None where it is in no region.

    Raises:
        InvalidRequestError: If a parameter has the wrong type, or is missing.
    """
    region, offset, size = (
        _value(tensor, given, key, kind)
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
    # A negative size is a huge unsigned one to the reference, which no region has.
    return str(region), int(offset or 0), int(size) if int(size) >= 0 else 1 << 64


def _value(tensor: str, given: Mapping[str, InferParameter], key: str, kind: str) -> str | int | None:
    if key not in given:
        return None
    parameter = given[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidRequestError(f"invalid value type for '{key}' parameter for tensor '{tensor}', expected {kind}.")
    value: str | int = getattr(parameter, kind)
    return value

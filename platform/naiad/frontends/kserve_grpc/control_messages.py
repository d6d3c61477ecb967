"""Messages of all methods but inference: documents to responses, requests to arguments. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from naiad.core.errors import InvalidRequestError
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.regions import CudaRegion, Region

M = TypeVar("M", bound=Message)
S = TypeVar("S", pb.CudaSharedMemoryStatusResponse, pb.SystemSharedMemoryStatusResponse)


def from_document(document: dict[str, Any], message: M) -> M:
    """*message* filled with a document of HTTP (`protocol.documents`): the fields of both have the same names."""
    return json_format.ParseDict(document, message)


def load_parameters(request: pb.RepositoryModelLoadRequest) -> dict[str, str | bytes]:
    """The parameters of a load: `config` as text, `file:<path>` as bytes."""
    parameters: dict[str, str | bytes] = {}
    for key, parameter in request.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if key == "config":
            expected = "string_param"
        elif key.startswith("file:"):
            expected = "bytes_param"
        else:
            raise InvalidRequestError(f"unrecognized load parameter '{key}'.")
        if kind != expected:
            raise InvalidRequestError(f"invalid value type for load parameter '{key}', expected {expected}.")
        parameters[key] = getattr(parameter, expected)
    return parameters


def unload_dependents(request: pb.RepositoryModelUnloadRequest) -> bool:
    """Whether the models that an ensemble depends on are unloaded with it. Other parameters are ignored."""
    if "unload_dependents" not in request.parameters:
        return False
    parameter = request.parameters["unload_dependents"]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidRequestError("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return parameter.bool_param


def with_regions(response: S, found: Sequence[CudaRegion | Region]) -> S:
    """*response* with registered regions by name: the fields of its entries have the names of theirs."""
    for region in found:
        entry = response.regions[region.name]
        for field in entry.DESCRIPTOR.fields:
            setattr(entry, field.name, getattr(region, field.name))
    return response

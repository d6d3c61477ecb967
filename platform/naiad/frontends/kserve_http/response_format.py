"""How a client wants its outputs: which of them, binary or as JSON, as classes, or in its shared memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from naiad_stub.memo import Memo

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.frontends.kserve_http.json_members import as_boolean, as_object, as_string, as_unsigned, string_member
from naiad.frontends.regions import TensorRegions
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.protocol.inference import OutputTensor

_MAX_LAYOUTS = 64  # layouts of outputs whose JSON is kept for one form of request
_MAX_BYTES = 16 << 10  # Bytes of that JSON. A frontend may know a thousand forms.


Pieces: TypeAlias = tuple[tuple[bytes, Callable[[OutputTensor], bytes]], ...]
"""The JSON before each list of data of a response, and what writes the list."""


class RepeatedResponses:
    """What the responses to one repeated request have in common, by layout of their outputs."""

    __slots__ = ("documents", "heads", "texts")

    def __init__(self) -> None:
        self.heads: Memo[Hashable, bytes] = Memo(_MAX_LAYOUTS, _MAX_BYTES)  # all before the data, without an id
        self.texts: Memo[Hashable, bytes] = Memo(_MAX_LAYOUTS, _MAX_BYTES)  # the JSON after the id
        self.documents: Memo[Hashable, Pieces] = Memo(_MAX_LAYOUTS, _MAX_BYTES)  # JSON around the lists of data


@dataclass(slots=True)
class ResponseFormat:
    """How the client wants its outputs."""

    binary_by_default: bool = False  # whether outputs that are not listed are sent as binary
    binary: dict[str, bool] = field(default_factory=dict)  # whether each listed output is sent as binary, by name
    requested: RequestedOutputs | None = None
    # What earlier responses of this form had in common; None for requests that are not recognised when they are
    # repeated.
    repeated: RepeatedResponses | None = None

    def is_binary(self, name: str) -> bool:
        return self.binary.get(name, self.binary_by_default)


def parse_outputs(outputs: object, form: ResponseFormat, regions: TensorRegions) -> list[str]:
    """Read the `outputs` of a request into *form*; return their names."""
    if outputs is None:
        return []
    if not isinstance(outputs, list):
        raise MalformedRequestError("Unable to parse 'outputs': attempt to access JSON non-array as array")
    for output in outputs:
        name = string_member(as_object(output, "outputs"), "name")
        if name in form.binary:
            raise InvalidRequestError(f"output '{name}' already exists in request")
        parameters = output.get("parameters")
        form.binary[name] = False
        if parameters:
            _parse_output(name, as_object(parameters, "parameters"), form, regions)
    return list(form.binary)


def _parse_output(name: str, parameters: Mapping[str, Any], form: ResponseFormat, regions: TensorRegions) -> None:
    form.binary[name] = as_boolean(parameters.get("binary_data", False), "Unable to parse 'binary_data': ")
    has_region = "shared_memory_region" in parameters
    if not has_region and "classification" not in parameters:
        return
    count = as_unsigned(parameters.get("classification", 0), "Unable to set 'classification': ")
    requested = form.requested or RequestedOutputs()
    if count:
        requested.classes[name] = count
    if has_region:
        _check_region_alone(is_binary=form.binary[name], has_classes=bool(count))
        requested.regions[name] = regions.part(*parse_region(parameters, regions))
    form.requested = requested or None


def _check_region_alone(*, is_binary: bool, has_classes: bool) -> None:
    if has_classes:
        raise InvalidRequestError("Output can't set both 'shared_memory_region' and 'classification'")
    if is_binary:
        raise InvalidRequestError("Output can't set both 'shared_memory_region' and 'binary_data'")


def parse_region(parameters: Mapping[str, Any], regions: TensorRegions) -> tuple[str, int, int]:
    """Region, offset and size that the parameters of a tensor name."""
    region = as_string(parameters["shared_memory_region"], "Unable to parse 'shared_memory_region': ")
    offset = as_unsigned(parameters.get("shared_memory_offset", 0), "Unable to parse 'shared_memory_offset': ")
    if "shared_memory_byte_size" not in parameters:
        # The reference reads an uninitialised number here. An unknown region is the more helpful error.
        regions.check(region)
    size = as_unsigned(parameters.get("shared_memory_byte_size"), "Unable to parse 'shared_memory_byte_size': ")
    return region, offset, size

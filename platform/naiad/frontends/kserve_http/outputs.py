"""How a client wants its outputs: which, as binary or JSON, as classes, or in its shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from naiad.errors import InvalidRequestError, MalformedRequestError
from naiad.frontends.kserve_http.members import boolean, json_object, string, text, unsigned
from naiad.frontends.regions import ClientRegions
from naiad.frontends.requested_outputs import RequestedOutputs


@dataclass(slots=True)
class OutputPlan:
    """How the client wants its outputs.

    Attributes:
        binary_by_default: For outputs that are not listed.
        binary: By name, for those that are.
        heads: Responses up to their binary data, by layout of the outputs (see `infer_response.write_infer`).
        texts: Likewise their JSON behind the id, for responses that have one.
        requested: Outputs in a special form; None for most requests.
    """

    binary_by_default: bool = False
    binary: dict[str, bool] = field(default_factory=dict)
    heads: dict[object, bytes] = field(default_factory=dict)
    texts: dict[object, bytes] = field(default_factory=dict)
    requested: RequestedOutputs | None = None

    def is_binary(self, name: str) -> bool:
        """Whether output *name* goes out as binary."""
        return self.binary.get(name, self.binary_by_default)


def parse_outputs(outputs: object, plan: OutputPlan, regions: ClientRegions) -> list[str]:
    """Read the `outputs` of a request into *plan*; return their names.

    Raises:
        NaiadError: If anything is malformed, or a region is not there.
    """
    if outputs is None:
        return []
    if not isinstance(outputs, list):
        raise MalformedRequestError("Unable to parse 'outputs': attempt to access JSON non-array as array")
    for output in outputs:
        name = string(json_object(output, "outputs"), "name")
        if name in plan.binary:
            raise InvalidRequestError(f"output '{name}' already exists in request")
        parameters = output.get("parameters")
        plan.binary[name] = False
        if parameters:
            _parse_output(name, json_object(parameters, "parameters"), plan, regions)
    return list(plan.binary)


def _parse_output(name: str, parameters: Mapping[str, Any], plan: OutputPlan, regions: ClientRegions) -> None:
    plan.binary[name] = boolean(parameters.get("binary_data", False), "Unable to parse 'binary_data': ")
    has_region = "shared_memory_region" in parameters
    if not has_region and "classification" not in parameters:
        return
    count = unsigned(parameters.get("classification", 0), "Unable to set 'classification': ")
    requested = plan.requested or RequestedOutputs()
    if count:
        requested.classes[name] = count
    if has_region:
        _check_region_alone(is_binary=plan.binary[name], has_classes=bool(count))
        requested.regions[name] = regions.output_region(*parse_region(parameters, regions))
    plan.requested = requested or None


def _check_region_alone(*, is_binary: bool, has_classes: bool) -> None:
    if has_classes:
        raise InvalidRequestError("Output can't set both 'shared_memory_region' and 'classification'")
    if is_binary:
        raise InvalidRequestError("Output can't set both 'shared_memory_region' and 'binary_data'")


def parse_region(parameters: Mapping[str, Any], regions: ClientRegions) -> tuple[str, int, int]:
    """Region, offset and size that the parameters of a tensor name.

    Raises:
        MalformedRequestError: If one has the wrong type.
        NaiadError: If there is no such region, where that is all that can be told.
    """
    region = text(parameters["shared_memory_region"], "Unable to parse 'shared_memory_region': ")
    offset = unsigned(parameters.get("shared_memory_offset", 0), "Unable to parse 'shared_memory_offset': ")
    if "shared_memory_byte_size" not in parameters:  # the reference then takes what its memory happens to hold
        regions.check(region)
    size = unsigned(parameters.get("shared_memory_byte_size"), "Unable to parse 'shared_memory_byte_size': ")
    return region, offset, size

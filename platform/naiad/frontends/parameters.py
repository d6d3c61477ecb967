"""Parameters of an HTTP request: those that the server reads, and those for the model.

Names and texts: SRV docs/protocol/extension_parameters.md, src/http_server.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, Parameter

_MAX_UINT64 = (1 << 64) - 1


@dataclass(slots=True)
class RequestParameters:
    """The parsed `parameters` of a request.

    Attributes:
        binary_data_output: Whether outputs that are not listed are sent as binary.
        custom: All other parameters, for the model.
    """

    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    binary_data_output: bool = False
    custom: dict[str, Parameter] = field(default_factory=dict)


def parse_parameters(parameters: Mapping[str, Any]) -> RequestParameters:
    """Read the `parameters` object of an HTTP inference request."""
    parsed = RequestParameters()
    for name, value in parameters.items():
        if name == "sequence_id":
            parsed.correlation_id = value if isinstance(value, str) else _unsigned(name, value)
        elif name == "sequence_start":
            parsed.flags |= SEQUENCE_START if _boolean(name, value) else 0
        elif name == "sequence_end":
            parsed.flags |= SEQUENCE_END if _boolean(name, value) else 0
        elif name == "priority":
            parsed.priority = _unsigned(name, value)
        elif name == "timeout":
            parsed.timeout_us = _unsigned(name, value)
        elif name == "binary_data_output":
            parsed.binary_data_output = _boolean(name, value)
        elif name.startswith("triton_"):
            raise InvalidRequestError(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        elif isinstance(value, bool | int | float | str):
            parsed.custom[name] = value
        else:
            raise InvalidRequestError(
                f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
            )
    return parsed


def _unsigned(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_UINT64:
        raise MalformedRequestError(
            f"Unable to parse '{name}': attempt to access JSON non-unsigned-integer as unsigned-integer"
        )
    return value


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise MalformedRequestError(f"Unable to parse '{name}': attempt to access JSON non-boolean as boolean")
    return value

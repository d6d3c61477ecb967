"""Parameters of requests and responses. Reserved ones set fields of the request, all others are passed to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from naiad.core.errors import InvalidRequestError
from naiad.frontends.kserve_grpc.service_pb2 import InferParameter
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, InferRequest, Parameter

EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"  # the only `triton_` parameter that clients may set

FINAL_RESPONSE = "triton_final_response"  # whether a streamed response is the last of its request

_UINT64 = (1 << 64) - 1
_INT64_MAX = (1 << 63) - 1
_CHOICES = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


def decode(parameters: Mapping[str, InferParameter], request: InferRequest) -> bool:
    """Set what the parameters of a request say; return whether its stream ends with an empty final response."""
    for_model: dict[str, Parameter] = {}
    enable_empty_final = False
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        value = getattr(parameter, kind) if kind else None
        reserved = _RESERVED.get(key)
        if reserved is not None:
            reserved(request, kind, value)
        elif key == EMPTY_FINAL_RESPONSE:
            if kind != "bool_param":
                raise _wrong_type(key, "bool_param")
            enable_empty_final = bool(value)
        elif key.startswith("triton_"):
            raise InvalidRequestError(
                "parameter keys starting with 'triton_' are reserved for Triton usage. "
                f"Only the following keys starting with 'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
            )
        elif value is None or kind == "uint64_param":
            raise InvalidRequestError(
                f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
            )
        else:
            for_model[key] = value
    request.parameters = for_model
    return enable_empty_final


def encode(parameters: Mapping[str, Parameter], into: Any) -> None:
    """Write response parameters into a protobuf map of `InferParameter`."""
    for key, value in parameters.items():
        choice = "uint64_param" if isinstance(value, int) and value > _INT64_MAX else _CHOICES[type(value)]
        setattr(into[key], choice, value)


def _sequence_id(request: InferRequest, kind: str | None, value: Any) -> None:
    if kind == "int64_param":
        request.correlation_id = value & _UINT64  # ids are unsigned in the reference, but the parameter is signed
    elif kind == "string_param":
        request.correlation_id = value
    else:
        raise _wrong_type("sequence_id", "int64_param or string_param")


def _flag(name: str, flag: int) -> Callable[[InferRequest, str | None, Any], None]:
    def set_flag(request: InferRequest, kind: str | None, value: Any) -> None:
        if kind != "bool_param":
            raise _wrong_type(name, "bool_param")
        if value:
            request.flags |= flag

    return set_flag


def _priority(request: InferRequest, kind: str | None, value: Any) -> None:
    if kind not in {"int64_param", "uint64_param"}:
        raise _wrong_type("priority", "int64_param or uint64_param")
    if value < 0:
        raise InvalidRequestError("invalid value for 'priority', expected value >= 0.")
    request.priority = value


def _timeout(request: InferRequest, kind: str | None, value: Any) -> None:
    if kind != "int64_param":
        raise _wrong_type("timeout", "int64_param")
    # The reference reads a negative number as a huge unsigned one, which never shortens the model's own timeout.
    request.timeout_us = max(value, 0)


def _wrong_type(name: str, expected: str) -> InvalidRequestError:
    return InvalidRequestError(f"invalid value type for '{name}' parameter, expected {expected}.")


_RESERVED: dict[str, Callable[[InferRequest, str | None, Any], None]] = {
    "sequence_id": _sequence_id,
    "sequence_start": _flag("sequence_start", SEQUENCE_START),
    "sequence_end": _flag("sequence_end", SEQUENCE_END),
    "priority": _priority,
    "timeout": _timeout,
}

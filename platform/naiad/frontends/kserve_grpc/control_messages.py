"""What control messages say: parameters of loads and unloads, and settings of the log. Pure functions."""

from __future__ import annotations

from naiad.core.errors import InvalidRequestError
from naiad.frontends import log_settings
from naiad.frontends.kserve_grpc import service_pb2 as pb

LOG_CHOICES = {bool: "bool_param", int: "uint32_param", str: "string_param"}
"""For each type of setting: the field of `LogSettingsRequest` that holds it."""

_KINDS = {bool: "boolean", int: "int32", str: "string"}  # the same in error texts


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


def read_log_settings(request: pb.LogSettingsRequest) -> dict[str, str | bool | int]:
    """The settings of the log that a request names."""
    wanted: dict[str, str | bool | int] = {}
    for name, value in request.settings.items():
        if name not in log_settings.TYPES:
            continue
        kind = log_settings.TYPES[name]
        if name != "log_file" and value.WhichOneof("parameter_choice") != LOG_CHOICES[kind]:
            raise InvalidRequestError(f"expect {_KINDS[kind]} for '{name}'")
        wanted[name] = getattr(value, LOG_CHOICES[kind])
    if "log_format" in wanted:
        log_settings.check_format(str(wanted["log_format"]))
    return wanted

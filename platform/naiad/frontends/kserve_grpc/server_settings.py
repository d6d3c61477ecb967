"""The methods LogSettings and TraceSetting: settings that change while the server runs."""

from __future__ import annotations

from typing import Any

from naiad.core.errors import InvalidRequestError
from naiad.engine.facade import EngineFacade
from naiad.frontends import log_settings
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.log_settings import ServerLog
from naiad.frontends.tracing import settings as trace_settings
from naiad.frontends.tracing.request_tracer import RequestTracer

_CHOICES = {bool: ("bool_param", "boolean"), int: ("uint32_param", "int32"), str: ("string_param", "string")}
"""For each type of setting: the field of `LogSettingsRequest` that holds it, and its name in error texts."""


async def change_log_settings(request: pb.LogSettingsRequest, log: ServerLog) -> pb.LogSettingsResponse:
    """Change the settings that the request names; return all of them."""
    wanted: dict[str, str | bool | int] = {}
    for name, value in request.settings.items():
        if name not in log_settings.TYPES:
            continue
        choice, kind = _CHOICES[log_settings.TYPES[name]]
        if name != "log_file" and value.WhichOneof("parameter_choice") != choice:
            raise InvalidRequestError(f"expect {kind} for '{name}'")
        wanted[name] = getattr(value, choice)
    if "log_format" in wanted:
        log_settings.check_format(str(wanted["log_format"]))
    if wanted:
        await log.change(log_settings.with_changes(log.settings, wanted))
    response = pb.LogSettingsResponse()
    for name, setting in log_settings.document(log.settings).items():
        setattr(response.settings[name], _CHOICES[type(setting)][0], setting)
    return response


async def change_trace_settings(
    request: pb.TraceSettingRequest, engine: EngineFacade, tracer: RequestTracer
) -> pb.TraceSettingResponse:
    """Change the settings that the request names, of one model or of all; return those that then apply."""
    model = request.model_name
    if model:
        trace_settings.check_model_exists(engine, model)
    if "trace_file" in request.settings:
        raise trace_settings.read_only_file_error()
    changes: dict[str, Any] = {}
    if "trace_level" in request.settings:
        names = list(request.settings["trace_level"].value)
        changes["levels"] = trace_settings.parse_levels(names) if names else None
    for name, field in trace_settings.NUMBERS.items():
        if name in request.settings:
            changes[field] = _number(name, list(request.settings[name].value))
    await tracer.change(model, changes)
    response = pb.TraceSettingResponse()
    for name, value in tracer.settings(model).items():
        response.settings[name].value.extend([value] if isinstance(value, str) else value)
    return response


def _number(name: str, values: list[str]) -> int | None:
    if not values:
        return None
    if len(values) > 1:
        raise InvalidRequestError(f"expect only 1 value for '{name}'")
    return trace_settings.parse_number(name, values[0])

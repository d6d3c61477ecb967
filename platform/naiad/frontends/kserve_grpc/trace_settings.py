"""Trace settings in messages."""

from __future__ import annotations

from typing import Any

from naiad.engine.door import EngineDoor
from naiad.errors import InvalidRequestError
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.tracing import settings as trace_settings
from naiad.frontends.tracing.tracer import Tracer


def trace_settings_changed(
    request: pb.TraceSettingRequest, engine: EngineDoor, tracer: Tracer
) -> pb.TraceSettingResponse:
    """Change what the request names, for all models or one; answer with the settings that hold then.

    Raises:
        NaiadError: If a setting cannot be changed so.
    """
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
    tracer.change(model, changes)
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

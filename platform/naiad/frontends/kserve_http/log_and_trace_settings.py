"""The endpoints `/v2/logging` and `/v2/trace/setting`: settings that change while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from naiad.core.errors import MalformedRequestError
from naiad.engine.facade import EngineFacade
from naiad.frontends import log_settings
from naiad.frontends.http1.messages import HttpRequest, json_response
from naiad.frontends.kserve_http.json_document import parse_json
from naiad.frontends.kserve_http.json_members import as_boolean, as_string, as_unsigned
from naiad.frontends.log_settings import ServerLog
from naiad.frontends.tracing import settings as trace_settings
from naiad.frontends.tracing.request_tracer import RequestTracer
from naiad.protocol.inference import Buffer

_READERS: dict[type, Callable[[object, str], str | bool | int]] = {
    bool: as_boolean,
    int: as_unsigned,
    str: as_string,
}


async def log_settings_response(request: HttpRequest, log: ServerLog) -> Sequence[Buffer]:
    """All settings of the log, after changing those that a POST names."""
    if request.method == "POST":
        changes = {
            name: _READERS[log_settings.TYPES[name]](value, "")
            for name, value in parse_json(request.body).items()
            if name in log_settings.TYPES and (value is not None or name == "log_file")
        }
        await log.change(log_settings.with_changes(log.settings, changes))
    return json_response(log_settings.document(log.settings))


async def trace_settings_response(
    request: HttpRequest, model: str, engine: EngineFacade, tracer: RequestTracer
) -> Sequence[Buffer]:
    """The trace settings of one model, or the default ones (no *model*), after changing those that a POST names."""
    if model:
        trace_settings.check_model_exists(engine, model)
    if request.method == "POST":
        document = parse_json(request.body)
        if "trace_file" in document:
            raise trace_settings.read_only_file_error()
        changes: dict[str, Any] = {}
        if "trace_level" in document:
            _read_levels(document["trace_level"], changes)
        for name, field in trace_settings.NUMBERS.items():
            if name in document:
                value = document[name]
                changes[field] = None if value is None else trace_settings.parse_number(name, as_string(value, ""))
        await tracer.change(model, changes)
    return json_response(tracer.settings(model))


def _read_levels(value: object, changes: dict[str, Any]) -> None:
    if value is None:
        changes["levels"] = None
    elif not isinstance(value, list):
        raise MalformedRequestError("attempt to access JSON non-array as array")
    elif value:  # an empty list changes nothing, as in the reference
        changes["levels"] = trace_settings.parse_levels([as_string(name, "") for name in value])

"""The endpoints `/v2/logging` and `/v2/trace/setting`: settings that change while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naiad.core.errors import MalformedRequestError
from naiad.engine.facade import EngineFacade
from naiad.frontends import log_settings
from naiad.frontends.http1.messages import HttpRequest, json_response
from naiad.frontends.kserve_http.json_document import parse_json
from naiad.frontends.kserve_http.json_members import as_boolean, as_string, as_unsigned
from naiad.frontends.log_settings import ServerLog
from naiad.frontends.tracing.request_tracer import RequestTracer
from naiad.frontends.tracing.settings import NUMBERS, change_trace_settings
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
    given: dict[str, list[str]] = {}
    for name, value in parse_json(request.body).items() if request.method == "POST" else ():
        if value is None or name == "trace_file":  # which is refused with any value
            given[name] = []
        elif name == "trace_level":
            if not isinstance(value, list):
                raise MalformedRequestError("attempt to access JSON non-array as array")
            if value:  # an empty list changes nothing, as in the reference
                given[name] = [as_string(each, "") for each in value]
        elif name in NUMBERS:
            given[name] = [as_string(value, "")]
    return json_response(await change_trace_settings(tracer, engine, model, given))

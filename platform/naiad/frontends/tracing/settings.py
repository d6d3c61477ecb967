"""Trace settings sent by clients over HTTP or gRPC: changes fields of `TraceConfig` by their texts.

Rules and texts: SRV src/http_server.cc, src/grpc/grpc_server.cc, docs/protocol/extension_trace.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.config.server.trace_options import levels_of
from naiad.core.errors import InvalidRequestError, NaiadError, UnsupportedRequestError
from naiad.engine.facade import EngineFacade
from naiad.frontends.tracing.request_tracer import RequestTracer

NUMBERS = {"trace_rate": "rate", "trace_count": "count", "log_frequency": "log_frequency"}
"""Numeric settings, and their fields of `TraceConfig`."""

_MAX_DIGITS = 100
_LEADING = re.compile(r"\s*([+-]?[0-9]+)", re.ASCII)
_UINT32 = (1 << 32) - 1
_INT32 = (1 << 31) - 1


async def change_trace_settings(
    tracer: RequestTracer, engine: EngineFacade, model: str, given: Mapping[str, Sequence[str]]
) -> Mapping[str, str | list[str]]:
    """Change the settings that *given* names, of one model or of all (no *model*); return those that then apply.

    A setting without a value is reset. Unknown settings, and unknown levels, are ignored.
    """
    if model:
        try:
            engine.model_metadata(model)
        except NaiadError:
            raise InvalidRequestError(f"Request for unknown model : {model}") from None
    if "trace_file" in given:  # through which a client could overwrite any file of the server
        raise UnsupportedRequestError("trace file location can not be updated through network protocol")
    changes: dict[str, Any] = {}
    if "trace_level" in given:
        names = given["trace_level"]
        if "OFF" in names and len(names) > 1:
            raise InvalidRequestError("Expect only one trace level 'OFF' is specified")
        changes["levels"] = levels_of(names) if names else None
    for name, field in NUMBERS.items():
        if name in given:
            values = given[name]
            if len(values) > 1:
                raise InvalidRequestError(f"expect only 1 value for '{name}'")
            changes[field] = parse_number(name, values[0]) if values else None
    await tracer.change(model, changes)
    return tracer.settings(model)


def parse_number(name: str, text: str) -> int:
    """The value of a numeric setting; negative ones of unsigned settings wrap around 2**32, as in the reference."""
    match = _LEADING.match(text)
    if match is None:
        raise InvalidRequestError(f"Unable to parse '{name}', got: {text}")
    value = int(match[1][:_MAX_DIGITS])  # which is out of range if it has more digits
    if name == "trace_count":
        if value < -1:
            raise InvalidRequestError(f"Unable to parse 'trace_count'. Expecting value >= -1, got: {text}")
        low, high = -1, _INT32
    else:
        low, high = 0, _UINT32
        value = value & _UINT32 if -high <= value < 0 else value
    if not low <= value <= high:
        raise InvalidRequestError(f"Unable to parse '{name}', value is out of range [ {low}, {high} ], got: {text}")
    return value

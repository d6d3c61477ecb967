"""Trace settings sent by clients over HTTP or gRPC: parses texts into fields of `TraceConfig`.

Rules and texts: SRV src/http_server.cc, src/grpc/grpc_server.cc, docs/protocol/extension_trace.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from naiad.config.server.trace_options import levels_of
from naiad.core.errors import InvalidRequestError, NaiadError, UnsupportedRequestError
from naiad.engine.facade import EngineFacade

NUMBERS = {"trace_rate": "rate", "trace_count": "count", "log_frequency": "log_frequency"}
"""Numeric settings, and their fields of `TraceConfig`."""

_MAX_DIGITS = 100
_LEADING = re.compile(r"\s*([+-]?[0-9]+)", re.ASCII)
_UINT32 = (1 << 32) - 1
_INT32 = (1 << 31) - 1


def check_model_exists(engine: EngineFacade, name: str) -> None:
    """Reject settings for an unknown model."""
    try:
        engine.model_metadata(name)
    except NaiadError:
        raise InvalidRequestError(f"Request for unknown model : {name}") from None


def read_only_file_error() -> UnsupportedRequestError:
    """The error for a client that sets the trace file, through which it could overwrite any file of the server."""
    return UnsupportedRequestError("trace file location can not be updated through network protocol")


def parse_levels(names: Sequence[str]) -> tuple[str, ...]:
    """The trace levels of these names; unknown names are ignored."""
    if "OFF" in names and len(names) > 1:
        raise InvalidRequestError("Expect only one trace level 'OFF' is specified")
    return levels_of(names)


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

"""Trace settings as clients write them, whichever the protocol: texts to fields of `TraceConfig`.

Rules and texts: SRV src/http_server.cc, src/grpc/grpc_server.cc, docs/protocol/extension_trace.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from naiad.config.server.trace_options import levels_of
from naiad.engine.door import EngineDoor
from naiad.errors import InvalidRequestError, NaiadError, UnsupportedRequestError

NUMBERS = {"trace_rate": "rate", "trace_count": "count", "log_frequency": "log_frequency"}
"""Fields of the settings that are numbers."""

_LEADING = re.compile(r"\s*([+-]?[0-9]+)")
_UINT32 = (1 << 32) - 1
_INT32 = (1 << 31) - 1


def check_model(engine: EngineDoor, name: str) -> None:
    """Refuse settings of a model that is not there.

    Raises:
        InvalidRequestError: If it is not.
    """
    try:
        engine.is_decoupled(name)
    except NaiadError:
        raise InvalidRequestError(f"Request for unknown model : {name}") from None


def refuse_file() -> UnsupportedRequestError:
    """The error for a file of traces that a client names."""
    return UnsupportedRequestError("trace file location can not be updated through network protocol")


def levels(names: Sequence[str]) -> tuple[str, ...]:
    """The levels of some names; unknown ones stand for none.

    Raises:
        InvalidRequestError: If OFF is one of several.
    """
    if "OFF" in names and len(names) > 1:
        raise InvalidRequestError("Expect only one trace level 'OFF' is specified")
    return levels_of(names)


def number(name: str, text: str) -> int:
    """The value of a number; a negative one wraps where the reference's does.

    Raises:
        InvalidRequestError: If it is none, or out of bounds.
    """
    match = _LEADING.match(text)
    if match is None:
        raise InvalidRequestError(f"Unable to parse '{name}', got: {text}")
    value = int(match[1])
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

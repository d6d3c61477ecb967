"""Settings of the log that clients may read and change while the server runs.

Names and texts: SRV docs/protocol/extension_logging.md, src/http_server.cc, src/grpc/grpc_server.cc. Unlike in the
reference, a request with one invalid setting changes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from naiad.core.errors import InvalidRequestError, NotReadyError, UnsupportedRequestError
from naiad.core.logs import LogSettings

FORMATS = {"default": False, "ISO8601": True}  # whether times are in ISO 8601, by the name of the log format

_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_MAX_VERBOSE_LEVEL = (1 << 32) - 1


class ServerLog(Protocol):
    """The server's log."""

    is_verbose: bool  # whether any debug messages are logged

    @property
    def settings(self) -> LogSettings:
        """The current settings."""

    async def change(self, settings: LogSettings) -> None:
        """Apply *settings*, in all processes of the server."""


class NullLog:
    """A log of a server without one: it keeps its settings and logs nothing."""

    def __init__(self) -> None:
        self.settings = LogSettings()
        self.is_verbose = False

    async def change(self, settings: LogSettings) -> None:
        self.settings = settings


def document(settings: LogSettings) -> dict[str, str | bool | int]:
    """The settings by their names in the protocols."""
    return {
        "log_file": str(settings.file or ""),
        "log_info": settings.info,
        "log_warning": settings.warning,
        "log_error": settings.error,
        "log_verbose_level": settings.verbose,
        "log_format": next(name for name, iso8601 in FORMATS.items() if iso8601 is settings.iso8601),
    }


def with_changes(settings: LogSettings, changes: Mapping[str, str | bool | int]) -> LogSettings:
    """The settings after *changes*, whose values have the right types. Unknown names are ignored.

    UnsupportedRequestError for the file, InvalidRequestError for a level beyond gRPC's 32 bits, NotReadyError, which is
    the reference's code "unavailable", for an unknown format.
    """
    if "log_file" in changes:
        raise UnsupportedRequestError("log file location can not be updated through network protocol")
    fields: dict[str, Any] = {field: changes[name] for name, field in _SWITCHES.items() if name in changes}
    if "log_verbose_level" in changes:
        fields["verbose"] = level = int(changes["log_verbose_level"])
        if level > _MAX_VERBOSE_LEVEL:
            raise InvalidRequestError(f"log_verbose_level is at most {_MAX_VERBOSE_LEVEL}, got: {level}")
    if "log_format" in changes:
        name = str(changes["log_format"])
        if name not in FORMATS:
            raise NotReadyError(f"invalid argument for --log_format, got: {name}")
        fields["iso8601"] = FORMATS[name]
    return replace(settings, **fields)


TYPES: dict[str, type[bool | int | str]] = {
    **dict.fromkeys(_SWITCHES, bool),
    "log_verbose_level": int,
    "log_format": str,
    "log_file": str,
}  # the type of each setting


def check_format(name: str) -> None:
    """Reject an unknown format with the text of the gRPC service, which differs from that of HTTP."""
    if name not in FORMATS:
        raise InvalidRequestError(f"invalid argument for log_format, got: {name}")

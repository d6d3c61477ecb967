"""Settings of the log that clients may read and change while the server runs.

Names and texts: SRV docs/protocol/extension_logging.md, src/http_server.cc, src/grpc/grpc_server.cc. Unlike the
reference's, a change that is refused in one setting changes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from naiad.errors import InvalidRequestError, NotReadyError, UnsupportedRequestError
from naiad.logs import LogSettings

FORMATS = {"default": False, "ISO8601": True}
"""Names of the formats of a line; whether its time is in ISO 8601."""

_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_MOST_VERBOSE = (1 << 32) - 1


class Log(Protocol):
    """The server's log."""

    is_verbose: bool
    """Whether any debug messages are logged."""

    @property
    def settings(self) -> LogSettings:
        """How it is set."""

    def change(self, settings: LogSettings) -> None:
        """Set it otherwise, at once."""


class NoLog:
    """Stands for the log where nobody has set one up: takes settings and does nothing with them."""

    def __init__(self) -> None:
        self.settings = LogSettings()
        self.is_verbose = False

    def change(self, settings: LogSettings) -> None:
        """Remember the settings."""
        self.settings = settings


def document(settings: LogSettings) -> dict[str, str | bool | int]:
    """The settings by their names."""
    return {
        "log_file": str(settings.file or ""),
        "log_info": settings.info,
        "log_warning": settings.warning,
        "log_error": settings.error,
        "log_verbose_level": settings.verbose,
        "log_format": next(name for name, iso8601 in FORMATS.items() if iso8601 is settings.iso8601),
    }


def changed(settings: LogSettings, wanted: Mapping[str, str | bool | int]) -> LogSettings:
    """The settings with those changed that are *wanted*, whose values have the right types; others are ignored.

    Raises:
        UnsupportedRequestError: If the file is among them.
        InvalidRequestError: If the level is more than gRPC could tell of.
        NotReadyError: If the format has no such name; the reference calls that unavailable.
    """
    if "log_file" in wanted:
        raise UnsupportedRequestError("log file location can not be updated through network protocol")
    changes: dict[str, Any] = {field: wanted[name] for name, field in _SWITCHES.items() if name in wanted}
    if "log_verbose_level" in wanted:
        changes["verbose"] = _level(int(wanted["log_verbose_level"]))
    if "log_format" in wanted:
        name = str(wanted["log_format"])
        if name not in FORMATS:
            raise NotReadyError(f"invalid argument for --log_format, got: {name}")
        changes["iso8601"] = FORMATS[name]
    return replace(settings, **changes)


def _level(number: int) -> int:
    if number > _MOST_VERBOSE:
        raise InvalidRequestError(f"log_verbose_level is at most {_MOST_VERBOSE}, got: {number}")
    return number


TYPES: dict[str, type[bool | int | str]] = {
    **dict.fromkeys(_SWITCHES, bool),
    "log_verbose_level": int,
    "log_format": str,
    "log_file": str,
}
"""What type each setting has."""


def check_format(name: str) -> None:
    """Refuse a format in the words that gRPC has for it.

    Raises:
        InvalidRequestError: If there is no such format.
    """
    if name not in FORMATS:
        raise InvalidRequestError(f"invalid argument for log_format, got: {name}")

"""`pb_utils.Logger`: writes to the server's log, with the file and line of the model's code."""

from __future__ import annotations

import sys
from typing import Any

from naiad_stub import runtime
from naiad_stub.arguments import text
from naiad_stub.exceptions import API_MODULE, NamedNumber


class LogLevel(NamedNumber):
    """The levels, numbered as in the reference."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


def _send(level: int, message: Any) -> None:
    """Log *message* with the file and line of the model's code that called the logger, two frames up."""
    message = text("Logger takes messages as str", message)
    frame = sys._getframe(2)
    runtime.current().log(level, frame.f_code.co_filename, frame.f_lineno, message)


class Logger:
    """The server's log. All methods are static."""

    __slots__ = ()
    __module__ = API_MODULE

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log *message* at *level*."""
        if not isinstance(level, LogLevel):
            raise TypeError(f"Logger takes one of its levels, such as Logger.INFO, got {level!r}")
        _send(level, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Log at INFO."""
        _send(0, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log at WARNING."""
        _send(1, message)

    @staticmethod
    def log_error(message: str) -> None:
        """Log at ERROR."""
        _send(2, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log at VERBOSE: shown if the server runs with --log-verbose of 1 or more."""
        _send(3, message)


# Under this name models reach it; set here, as in the class it would hide the annotation of `log`.
setattr(Logger, "LogLevel", LogLevel)  # noqa: B010 - the class has no such attribute for a type checker

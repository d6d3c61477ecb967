"""`pb_utils.Logger`: writes to the server's log, with the file and line of the model's code."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, List, Optional

from naiad_stub import runtime
from naiad_stub.arguments import text
from naiad_stub.exceptions import API_MODULE, NamedNumber

_SHOWN_IDS = 4
"""Ids of a batch that a line names."""


_SHOWN_CHARACTERS = 128
"""Characters of an id that a line shows: clients choose ids, and may send long ones."""


def _shortened(request_id: str) -> str:
    return request_id if len(request_id) <= _SHOWN_CHARACTERS else f"{request_id[:_SHOWN_CHARACTERS]}..."


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
    ids = _executing_ids(frame)
    if ids:
        message = f"[request id: {', '.join(ids)}] {message}"
    runtime.current().log(level, frame.f_code.co_filename, frame.f_lineno, message)


def _executing_ids(frame: Optional[FrameType]) -> List[str]:
    """Ids of the requests that this thread or coroutine executes; empty without ids, and in the model's own threads.

    They are found in the frame that calls `execute`, so that requests that log nothing pay nothing.
    """
    execution = sys.modules.get("naiad_stub.execution")  # missing where a model is tested without a server
    if execution is None:
        return []
    codes = (execution.Execution.begin.__code__, execution.Execution.complete.__code__)
    while frame is not None:
        if frame.f_code in codes:
            batch = frame.f_locals.get("late") or frame.f_locals["batch"]
            ids = [request.request_id() for request in batch.requests]
            shown = [_shortened(each) for each in ids[:_SHOWN_IDS] if each]
            return [*shown, "..."] if shown and len(ids) > _SHOWN_IDS else shown
        frame = frame.f_back
    return []


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

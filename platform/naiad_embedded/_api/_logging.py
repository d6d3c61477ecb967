"""`tritonserver._api._logging`."""

import sys
from pathlib import Path

from naiad_embedded._c.triton_bindings import TRITONSERVER_LogLevel as LogLevel
from naiad_embedded._c.triton_bindings import TRITONSERVER_LogMessage

__all__ = ["LogLevel", "LogMessage"]


def LogMessage(level: LogLevel, message: str) -> None:  # noqa: N802 - the package's name
    """Log a message of the program, with the file and line of the caller."""
    caller = sys._getframe(1)  # noqa: SLF001 - what `logging` does to find its caller
    TRITONSERVER_LogMessage(level, Path(caller.f_code.co_filename).name, caller.f_lineno, message)

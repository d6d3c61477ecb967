"""Failures of installers that the network, or a server of packages, has caused: only these are tried again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from naiad.core.errors import ExecutionEnvironmentError

__all__ = ["NetworkFailureError", "network_cause"]

# Texts of pip, uv, rattler and the libraries below them, which have no other sign of the cause. Each has what no name
# of a package may have, such as a space; a resolver's refusal has none of them.
_CAUSES = re.compile(
    r"timed out|network timeout|(?:Connect|Read)TimeoutError|[Cc]onnection (?:aborted|broken|closed|refused|reset)"
    r"|NewConnectionError|RemoteDisconnected\(|IncompleteRead\(|Temporary failure in name|Name or service not known"
    r"|error sending request|dns error|failed to lookup address|Network is unreachable|unexpected end of file"
    r"|HTTP error 5\d\d|\b50[0234] (?:Server Error|Internal|Bad Gateway|Service|Gateway)"
)
_GIVEN = re.compile(r"`[^`]*`|\S*/\S*")
"""What an installer quotes: names, requirements, addresses, paths."""


class NetworkFailureError(ExecutionEnvironmentError):
    """The network, or a server of packages, has failed.

    Attributes:
        cause: The line of the installer's output that says so.
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


def network_cause(lines: Iterable[str], file: Path) -> str:
    """The line of an installer's output that says that the network failed; empty for another cause.

    Args:
        lines: The output. Names and paths in it may have any words, so they do not count.
        file: The file that names the packages.
    """
    absolute = file.absolute()
    given = sorted({str(path) for path in (file, absolute, file.resolve(), absolute.parent)} - {"."}, key=len)
    for line in lines:
        rest = line
        for path in reversed(given):
            rest = rest.replace(path, "/")
        if _CAUSES.search(_GIVEN.sub(" ` ", rest)):
            return line.strip()
    return ""

"""Errors of the API: TRITONSERVER_Error and its codes."""

from __future__ import annotations

from naiad_stub.exceptions import ErrorCode

UNKNOWN = int(ErrorCode.UNKNOWN)
INTERNAL = int(ErrorCode.INTERNAL)
NOT_FOUND = int(ErrorCode.NOT_FOUND)
INVALID_ARG = int(ErrorCode.INVALID_ARG)
UNAVAILABLE = int(ErrorCode.UNAVAILABLE)
UNSUPPORTED = int(ErrorCode.UNSUPPORTED)
ALREADY_EXISTS = int(ErrorCode.ALREADY_EXISTS)
CANCELLED = int(ErrorCode.CANCELLED)

CODE_NAMES = (
    "Unknown",
    "Internal",
    "Not found",
    "Invalid argument",
    "Unavailable",
    "Unsupported",
    "Already exists",
    "Cancelled",
)
"""What TRITONSERVER_ErrorCodeString returns, by code."""


class ApiCallError(Exception):
    """A function of the API fails: the backend gets a TRITONSERVER_Error.

    Attributes:
        code: Number of the error code.
        message: The text.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class DeadHandleError(ApiCallError):
    """A handle is not that of a live object of the kind that the function takes. The text begins with the handle."""

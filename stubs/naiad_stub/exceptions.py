"""Errors that models raise, and errors that they respond with."""

from __future__ import annotations

import enum

from naiad_stub.arguments import text

API_MODULE = "c_python_backend_utils"
"""`__module__` of the API's classes, as in the reference: it shows where models print or pickle them."""


class TritonModelException(Exception):  # noqa: N818 - the name is the API's
    """What the API raises, and what a model may raise to fail a batch with its own text."""

    __module__ = API_MODULE


class ModelLoadError(TritonModelException):
    """What a backend raises for a model that it cannot load: its text is the whole reason.

    Frames of the backend's own code would tell a user nothing about the model, so they are neither sent nor logged. Not
    part of the reference's API.
    """

    __module__ = API_MODULE


class NamedNumber(enum.IntEnum):
    """A number that is printed by its name, as in the reference, under every Python: IntEnum changed that in 3.11."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, specification: str) -> str:
        return format(int(self) if specification else str(self), specification)


class ErrorCode(NamedNumber):
    """The codes of `TritonError`, numbered as TRITONSERVER_Error_Code."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """The error of a response. Not an exception: it is an argument of `InferenceResponse`."""

    __slots__ = ("__weakref__", "_code", "_message")
    __module__ = API_MODULE

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(code, ErrorCode):
            raise TypeError(f"TritonError takes one of its codes, such as TritonError.INVALID_ARG, got {code!r}")
        self._message = text("TritonError takes its message as str", message)
        self._code = code

    @classmethod
    def _received(cls, message: str, code: int) -> TritonError:
        """An error that the server sent; an unknown code becomes UNKNOWN."""
        return cls(message, ErrorCode(code) if 0 <= code <= ErrorCode.CANCELLED else ErrorCode.UNKNOWN)

    def message(self) -> str:
        """The text the client reads."""
        return self._message

    def code(self) -> ErrorCode:
        """The code, which decides the client's status."""
        return self._code

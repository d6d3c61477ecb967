"""The exceptions of the in-process API: one class for each error code, as in the `tritonserver` package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from naiad.core.errors import Code, NaiadError


class TritonError(Exception):
    """Base of the API's exceptions; the first argument is the message."""


class UnknownError(TritonError):
    """An error without a specific class, such as a cancelled request."""


class InternalError(TritonError):
    """The server or a model failed."""


class NotFoundError(TritonError):
    """The model or version does not exist."""


class InvalidArgumentError(TritonError):
    """An argument is invalid."""


class UnavailableError(TritonError):
    """The server or model cannot accept the call at present."""


class UnsupportedError(TritonError):
    """The server, the model or this machine does not support the call."""


class AlreadyExistsError(TritonError):
    """The object exists already."""


_CLASSES: dict[Code, type[TritonError]] = {
    Code.UNKNOWN: UnknownError,
    Code.INTERNAL: InternalError,
    Code.NOT_FOUND: NotFoundError,
    Code.INVALID_ARG: InvalidArgumentError,
    Code.UNAVAILABLE: UnavailableError,
    Code.UNSUPPORTED: UnsupportedError,
    Code.ALREADY_EXISTS: AlreadyExistsError,
    Code.CANCELLED: UnknownError,  # the package has no class for it
}

for _class in (TritonError, *_CLASSES.values()):
    _class.__module__ = "naiad"  # tracebacks show the module that users import the classes from


def as_triton_error(error: NaiadError) -> TritonError:
    """The API's exception for an error of the server."""
    return _CLASSES[error.code](error.message)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert errors of the server, raised in the `with` block, to the API's exceptions."""
    try:
        yield
    except NaiadError as error:
        raise as_triton_error(error) from None

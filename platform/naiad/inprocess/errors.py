"""The exceptions of the in-process API: one class per neutral code, as in the `tritonserver` package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from naiad.errors import Code, NaiadError

__all__ = [
    "AlreadyExistsError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
    "as_triton_error",
    "translated",
]


class TritonError(Exception):
    """Base of what the in-process API raises on purpose; the first argument is the message."""


class UnknownError(TritonError):
    """What has no other class, such as a request that was cancelled."""


class InternalError(TritonError):
    """Something failed in the server or in a model."""


class NotFoundError(TritonError):
    """There is no such model or version."""


class InvalidArgumentError(TritonError):
    """A value given cannot be used."""


class UnavailableError(TritonError):
    """The server or a model cannot take this now."""


class UnsupportedError(TritonError):
    """The server, the model or this machine does not do this."""


class AlreadyExistsError(TritonError):
    """There is one already."""


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
    _class.__module__ = "naiad"  # where they are imported from, and what a traceback calls them


def as_triton_error(error: NaiadError) -> TritonError:
    """The exception of this API that an error of ours becomes."""
    return _CLASSES[error.code](error.message)


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of ours as exceptions of this API."""
    try:
        yield
    except NaiadError as error:
        raise as_triton_error(error) from None

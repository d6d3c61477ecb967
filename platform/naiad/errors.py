"""Errors by cause, each with a neutral code.

Nothing here knows HTTP or gRPC: `frontends.status` maps codes to statuses. Codes are those of the reference
(TRITONSERVER_Error_Code), because clients and `pb_utils.TritonError` see their names.

Messages say what, where it was looked for and what to do; where a message copies the reference's text, the
raising code names the source.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Code(enum.Enum):
    """Neutral error codes; the value is the name printed by the reference in load errors and tables."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"


class NaiadError(Exception):
    """Base of everything naiad raises on purpose.

    Attributes:
        message: One clear message for the person who can fix it.
        code: The neutral code.
    """

    default_code = Code.INTERNAL

    def __init__(self, message: str, *, code: Code | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code


class InvalidRequestError(NaiadError):
    """The client's request is wrong in itself: malformed, or not what the model takes."""

    default_code = Code.INVALID_ARG


class MalformedRequestError(InvalidRequestError):
    """The JSON of a request cannot be read as what it should be.

    The client's fault like its siblings, but the reference answers INTERNAL, and clients know it by that.
    """

    default_code = Code.INTERNAL


class UnsupportedRequestError(NaiadError):
    """The request is well formed but asks for what this server or model does not do."""

    default_code = Code.UNSUPPORTED


class UnknownModelError(NaiadError):
    """No model of that name and version can answer."""

    default_code = Code.NOT_FOUND


class NotReadyError(NaiadError):
    """The server or model exists but cannot take this now."""

    default_code = Code.UNAVAILABLE


class ConfigError(NaiadError):
    """A model configuration cannot be read or contradicts itself."""

    default_code = Code.INVALID_ARG


class OptionError(NaiadError):
    """A command-line option has a value that cannot be used."""

    default_code = Code.INVALID_ARG


class ResolutionError(NaiadError):
    """No backend, model file or artifact was found for a model.

    Attributes:
        decided: What had been decided until then (`naiad.resolution.decision.Step`).
    """

    default_code = Code.INVALID_ARG
    decided: Sequence[object] = ()


class RepositoryError(NaiadError):
    """A model repository or the files of a model in it cannot be used."""

    default_code = Code.INVALID_ARG


class StorageError(NaiadError):
    """A place outside this machine (an object store, a web server) cannot be reached, read or understood."""


class ExecutionEnvironmentError(NaiadError):
    """An execution environment cannot be found, unpacked, probed or used."""


class InterpreterNotFoundError(ExecutionEnvironmentError):
    """No Python of the asked version is on this machine."""

    default_code = Code.NOT_FOUND


class ProtocolError(NaiadError):
    """A guest sent what the protocol between host and guest does not allow."""


class GuestDiedError(NaiadError):
    """A guest process ended while it was needed.

    Attributes:
        exit_status: Return code as of `subprocess` (negative: the signal), or None while unknown.
        last_lines: The last lines the guest wrote to stderr.
    """

    def __init__(self, message: str, *, exit_status: int | None = None, last_lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.last_lines = last_lines


class ModelError(NaiadError):
    """The model's own code failed or answered with an error.

    Attributes:
        traceback_text: The guest's traceback, empty where the model answered with an error on purpose.
        is_answer: Whether it is what the model answered to a request, on purpose.
    """

    def __init__(
        self, message: str, *, code: Code | None = None, traceback_text: str = "", is_answer: bool = False
    ) -> None:
        super().__init__(message, code=code)
        self.traceback_text = traceback_text
        self.is_answer = is_answer


def is_answer(error: NaiadError) -> bool:
    """Whether a model answered a request with *error* on purpose, so that nothing has failed."""
    return isinstance(error, ModelError) and error.is_answer


class OutOfMemoryError(NaiadError):
    """A shared segment cannot take a tensor now or ever."""

    default_code = Code.UNAVAILABLE


class ScaffoldError(NaiadError):
    """The first files of something cannot be written as asked."""

    default_code = Code.INVALID_ARG


class BundleError(NaiadError):
    """A bundle cannot be made, or cannot be used here."""

    default_code = Code.INVALID_ARG


class DeploymentError(NaiadError):
    """Nothing can be written by which a server would be started and watched as asked."""

    default_code = Code.INVALID_ARG

"""Exceptions by cause, each with an error code that is independent of the protocol.

`frontends.status` maps codes to statuses of HTTP and gRPC. The codes are those of the reference
(TRITONSERVER_Error_Code), because clients and `pb_utils.TritonError` see their names.

A message says what failed, why, with values and paths, and what to do. Where it is the reference's text, the code that
raises it names the source.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from typing import TypeVar


class Code(enum.Enum):
    """Error codes; the value is the name that the reference prints in load errors and tables."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"


class NaiadError(Exception):
    """Base class of all errors that naiad raises deliberately."""

    default_code = Code.INTERNAL

    def __init__(self, message: str, *, code: Code | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code


# X509_V_ERR_... of OpenSSL's x509_vfy.h, "Errors in case a check in X509_V_FLAG_X509_STRICT mode fails".
_STRICT_CERTIFICATE_ERRORS = range(78, 95)


def certificate_remedy(verify_code: int, otherwise: str) -> str:
    """What to do about a certificate that was rejected with *verify_code*: *otherwise*, unless it breaks RFC 5280.

    Python 3.13 and newer set VERIFY_X509_STRICT, so they reject certificates of private authorities that older ones
    accept. OpenSSL's message then names what is missing, such as the Authority Key Identifier.
    """
    if verify_code in _STRICT_CERTIFICATE_ERRORS:
        return "issue the certificate again as RFC 5280 requires, which Python 3.13 and newer check"
    return otherwise


class InvalidRequestError(NaiadError):
    """A request is malformed, or does not match the model's inputs and outputs."""

    default_code = Code.INVALID_ARG


class MalformedRequestError(InvalidRequestError):
    """The JSON of a request has the wrong structure."""

    default_code = Code.INTERNAL  # although the mistake is the client's: clients of the reference rely on it


class UnsupportedRequestError(NaiadError):
    """A well-formed request asks for a feature that this server or model lacks."""

    default_code = Code.UNSUPPORTED


class UnknownModelError(NaiadError):
    """No model has that name, or the model lacks that version."""

    default_code = Code.NOT_FOUND


class NoLoadedVersionError(UnknownModelError):
    """The model exists and none of its versions is loaded."""


class NotReadyError(NaiadError):
    """The server or model exists and cannot accept this request now."""

    default_code = Code.UNAVAILABLE


class QueueFullError(NotReadyError):
    """The queue of a model has no room for this request."""


class FatalRequestError(NaiadError):
    """Requests with the same inputs ended several processes, so that this one is refused."""


class ConfigError(NaiadError):
    """A model configuration is malformed or contradicts itself."""

    default_code = Code.INVALID_ARG


class ParameterError(ConfigError):
    """A parameter of a model's configuration is invalid."""

    def __init__(self, message: str, *, parameter: str = "", code: Code | None = None) -> None:
        super().__init__(message, code=code)
        self.parameter = parameter


class MissingPackageError(NaiadError):
    """A package that naiad consists of is not installed (`naiad.core.extensions`)."""

    default_code = Code.UNSUPPORTED


class OptionError(NaiadError):
    """A command-line option has an invalid value, or options exclude each other."""

    default_code = Code.INVALID_ARG


class ResolutionError(NaiadError):
    """The backend, code, artifacts or environment of a model cannot be found."""

    default_code = Code.INVALID_ARG
    decided: Sequence[object] = ()  # the decisions before the failure (`naiad.models.resolution.decision.Decision`)


class RepositoryError(NaiadError):
    """A model repository or the files of a model in it cannot be used."""

    default_code = Code.INVALID_ARG


class StorageError(NaiadError):
    """A remote storage (an object store, a web server) cannot be reached or read, or its response is invalid."""


class RegistryError(NaiadError):
    """A registry of OCI artifacts cannot be reached, refuses access, or its content is not what it should be."""


class ExecutionEnvironmentError(NaiadError):
    """An execution environment cannot be found, unpacked, probed or used."""


class EnvironmentBusyError(ExecutionEnvironmentError):
    """Another process is creating the environment, and the command does not wait for it."""


class StaleLockError(ExecutionEnvironmentError):
    """The lock of an environment does not match the requirements that it was made for."""


class InterpreterNotFoundError(ExecutionEnvironmentError):
    """No interpreter of the requested version is installed on this machine."""

    default_code = Code.NOT_FOUND


class ProtocolError(NaiadError):
    """A guest violated the protocol between host and guest."""


class GuestExitedError(NaiadError):
    """A guest process exited while a request or the server needed it."""

    def __init__(
        self, message: str, *, exit_status: int | None = None, last_lines: tuple[str, ...] = (), problem: str = ""
    ) -> None:
        super().__init__(message)
        self.exit_status = exit_status  # return code as in `subprocess` (negative: the signal), or None while unknown
        self.last_lines = last_lines
        self.problem = problem or message  # what happened, in one sentence: the message without these lines
        self.label = ""  # the cause as a label of metrics, where the exit status does not say it; else empty


class ModelError(NaiadError):
    """The model's code raised an exception, or returned an error response."""

    def __init__(
        self, message: str, *, code: Code | None = None, traceback_text: str = "", is_model_response: bool = False
    ) -> None:
        super().__init__(message, code=code)
        self.traceback_text = traceback_text
        self.is_model_response = is_model_response


E = TypeVar("E", bound=BaseException)


def fresh(error: E) -> E:
    """A copy of an error that a variable or an object refers to, to be raised in its place.

    A raised error refers to the frames that it passes. If one of them refers to the error, that is a cycle: the local
    variables of all these frames, with the tensors of a request, stay until the cyclic garbage collector runs, and that
    is rare. An error that is not a `NaiadError` is unexpected and is not copied: the log needs its traceback.
    """
    return copy.copy(error) if isinstance(error, NaiadError) else error


def without_frames(error: E) -> E:
    """An error that was caught, for an object that keeps it: see `fresh`. Its cause is dropped, too."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def is_model_response(error: NaiadError) -> bool:
    """Whether a model returned *error* as its response, so that neither the guest nor the host has failed."""
    return isinstance(error, ModelError) and error.is_model_response


class OutOfMemoryError(NaiadError):
    """A shared segment has no room for a tensor."""

    default_code = Code.UNAVAILABLE


class ScaffoldError(NaiadError):
    """The files of a new model or backend cannot be written."""

    default_code = Code.INVALID_ARG


class BundleError(NaiadError):
    """A bundle cannot be built, or cannot be used on this machine."""

    default_code = Code.INVALID_ARG


class DeploymentError(NaiadError):
    """The deployment files of a server cannot be written as requested."""

    default_code = Code.INVALID_ARG


def unexpected_error(action: str, error: Exception) -> NaiadError:
    """The error for a client of an *action*, such as "submit the request", that failed by a fault of this program.

    *error* is only described: its traceback, which the caller logs, may refer to the tensors of a request.
    """
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return NaiadError(f"cannot {action}: unexpected {name}: {error}; see the log of the server")

"""Run a `TritonPythonModel` in a test or a notebook, without a server: the public name of `naiad_embedded.testing`."""

from naiad_embedded.testing import (
    Call,
    ConfigError,
    InvalidRequestError,
    LogRecord,
    ModelError,
    ModelUnderTest,
    NaiadError,
    Request,
    Response,
    load,
)

__all__ = [
    "Call",
    "ConfigError",
    "InvalidRequestError",
    "LogRecord",
    "ModelError",
    "ModelUnderTest",
    "NaiadError",
    "Request",
    "Response",
    "load",
]

"""Run a `TritonPythonModel` in a test or a notebook, without a server.

    from naiad.testing import load

    with load("models/add_sub") as model:
        response = model.infer({"INPUT0": [1.0, 2.0], "INPUT1": [3.0, 4.0]})
        assert response["OUTPUT0"].tolist() == [4.0, 6.0]

The model runs in this process, under this interpreter; the checks and the texts of errors are the guest's own.
"""

from naiad.core.errors import ConfigError, InvalidRequestError, ModelError, NaiadError
from naiad_embedded.testing.model import ModelUnderTest, load
from naiad_embedded.testing.values import Call, LogRecord, Request, Response

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

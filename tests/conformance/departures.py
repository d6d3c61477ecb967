"""Where we owe another answer than the one recorded from Triton 2.51, and why.

The behaviour to match is that of a newer release (2.73), whose texts differ here and there; a few answers of the
reference are accidents nobody can rely on.
"""

from __future__ import annotations

import dataclasses
from typing import Any

_NEWER = "a newer release than the recorded one answers so"
_ID = "[request id: <id_unknown>] "


@dataclasses.dataclass(frozen=True)
class Departure:
    """The answer we owe.

    Attributes:
        why: The reason for not owing the recorded one.
        status: HTTP status, or name of a gRPC code; None stands for a refusal of any kind, a closed connection too.
        error: The text; None for any.
    """

    why: str
    status: int | str | None
    error: str | None = None

    def accepts(self, answer: dict[str, Any]) -> bool:
        """Whether an answer is the one owed."""
        if self.status is None:
            return bool(answer.get("closed")) or 400 <= answer.get("status", 0) < 500
        status = answer.get("status", answer.get("code"))
        text = answer.get("details", (answer.get("json") or {}).get("error"))
        return status == self.status and (self.error is None or text == self.error)


_FRAMING = Departure("the body's end cannot be known; the reference closes without a word, 400 is as good", None)
_TOO_MANY = "after an unfinished list the reference prints a bracket too few"

HTTP = {
    "JSON nested too deep": Departure(_NEWER, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
    "an output twice": Departure(_NEWER, 400, f"{_ID}output 'OUTPUT0' already exists in request"),
    "FP16 out as JSON": Departure(
        _NEWER,
        400,
        "sending FP16 data via JSON is not supported. Please use the binary data format for output OUTPUT0",
    ),
    "shared memory that was never registered": Departure(
        _NEWER, 501, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    ),
    "GET /v2/models/unknown/ready": Departure(_NEWER, 404, "Request for unknown model: 'unknown' is not found"),
    "GET /v2/models/add_sub/versions/9/ready": Departure(
        _NEWER, 404, "Request for unknown model: 'add_sub' version 9 is not found"
    ),
    "POST /v2/repository/somewhere/index": Departure(_NEWER, 501, "'repository_name' specification is not supported"),
    "an index asked with text for ready": Departure(_NEWER, 400, "Invalid value for 'ready': expected a boolean"),
    "a Content-Length too large": _FRAMING,
    "a negative Content-Length": _FRAMING,
    "a Content-Length that is no number": _FRAMING,
    "a gzip body that is none": Departure("the reference takes what it cannot unpack for an empty body", 400),
    "a gzip body that ends early": Departure("the reference parses what it could unpack and blames the JSON", 400),
    "a header length that is no number": Departure("the reference reads it as 0, a raw body", 400),
    "a header length with a rest": Departure("the reference reads 10x as 10 and blames the JSON", 400),
    "an input too many": Departure(
        _TOO_MANY,
        400,
        f"{_ID}expected 2 inputs but got 3 inputs for model 'add_sub'. Got input(s) ['INPUT0','INPUT1','INPUT2'], "
        "but missing required input(s) []. Please provide all required input(s).",
    ),
}

GRPC = {
    "unknown ready": Departure(_NEWER, "NOT_FOUND", "Request for unknown model: 'unknown' is not found"),
    "an output twice": Departure(_NEWER, "INVALID_ARGUMENT", f"{_ID}output 'OUTPUT0' already exists in request"),
    "an input too many": Departure(
        _TOO_MANY,
        "INVALID_ARGUMENT",
        HTTP["an input too many"].error,
    ),
}

"""Cases whose expected response is not the one recorded from Triton 2.51, and why.

The behaviour to match is that of a newer release (2.73), some of whose texts differ. A few responses of the reference
are accidents that no client can rely on.
"""

from __future__ import annotations

import dataclasses
from typing import Any

_NEWER = "a newer release than the recorded one answers so"
_ID = "[request id: <id_unknown>] "


@dataclasses.dataclass(frozen=True)
class Departure:
    """The expected response.

    Attributes:
        why: Why the recorded response is not expected.
        status: HTTP status, or name of a gRPC code; None for any rejection, including a closed connection.
        error: What the text must contain.
    """

    why: str
    status: int | str | None
    error: str = ""

    def accepts(self, answer: dict[str, Any]) -> bool:
        """Whether a response is the expected one."""
        if self.status is None:
            return bool(answer.get("closed")) or 400 <= answer.get("status", 0) <= 500
        if answer.get("status", answer.get("code")) != self.status:
            return False
        text = answer.get("details", answer.get("json", {}).get("error", ""))
        return self.error in text


_FRAMING = Departure("the body's end cannot be known; the reference closes without a word, 400 is as good", None)
_TOO_MANY = "of inputs none of which is missing the reference prints a list that does not end"
_OTHER_FORM = "the reference looks for members in what is no object, and blames their absence"

HTTP = {
    "an index request nested deeply": Departure(_NEWER, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
    "an index request whose ready is deep": Departure(_NEWER, 400, "Invalid value for 'ready': expected a boolean"),
    "an index request that is a list": Departure(
        "the reference ignores a body of another form",
        500,
        "failed to parse the request JSON buffer: it must be an object",
    ),
    "classes beyond 32 bits": Departure("the reference uses the number modulo 2 to the power of 32", 200),
    "classes beyond 63 bits": Departure("the reference uses the number modulo 2 to the power of 32", 200),
    "JSON nested too deep": Departure(_NEWER, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
    "an output twice": Departure(_NEWER, 400, "output 'OUTPUT0' already exists in request"),
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
    "an array for a body": Departure(_OTHER_FORM, 500, "must be an object"),
    "a string for a body": Departure(_OTHER_FORM, 500, "must be an object"),
    "an input that is no object": Departure(_OTHER_FORM, 500, "Unable to parse 'inputs'"),
    "an output that is no object": Departure(_OTHER_FORM, 500, "Unable to parse 'outputs'"),
    "parameters that are no object": Departure(_OTHER_FORM, 500, "Unable to parse 'parameters'"),
    "sequence_id that is a fraction": Departure(
        "it may be a number as well as text; the reference names text alone", 500, "Unable to parse 'sequence_id'"
    ),
    "a binary tensor without elements": Departure("the reference calls an answer with binary outputs JSON", 200),
    "a version beyond 64 bits": Departure(
        "the reference names its parser", 404, "Request for unknown model: 'add_sub'"
    ),
    "a name in percent code": Departure("clients quote names; the reference cannot find a name with a space", 200),
    "a shape beyond 64 bits of bytes": Departure("the reference's count of elements runs over", 500, "does not match"),
    "a batch of nothing": Departure(
        "the reference names an input and sizes", 400, f"{_ID}inference request batch-size must be >= 1 for 'batched'"
    ),
    "a raw body that is no whole number of elements": Departure(
        "the reference names an input that no model has", 400, f"{_ID}input byte size mismatch for input 'INPUT0'"
    ),
    "a string longer than its tensor": Departure(
        _NEWER, 400, "incomplete string data for inference input 'INPUT0' for model 'identity_bytes', expecting"
    ),
    "an input too many": Departure(_TOO_MANY, 400, f"{_ID}expected 2 inputs but got 3 inputs for model 'add_sub'."),
}

_NO_REGIONS = Departure(_NEWER, "UNIMPLEMENTED", HTTP["shared memory that was never registered"].error)

GRPC = {
    "unknown ready": Departure(_NEWER, "NOT_FOUND", "Request for unknown model: 'unknown' is not found"),
    "an output twice": Departure(_NEWER, "INVALID_ARGUMENT", "output 'OUTPUT0' already exists in request"),
    "an input too many": Departure(_TOO_MANY, "INVALID_ARGUMENT", HTTP["an input too many"].error),
    "a stream that an error ends": Departure(_NEWER, "NOT_FOUND", "Request for unknown model: 'nothing' is not found"),
    "a batch of fewer than none": Departure(
        "the reference compares it with the batch of another input, which is the same",
        "INVALID_ARGUMENT",
        f"{_ID}All input dimensions should be specified for input 'INPUT1' for model 'batched', got [-1,4]",
    ),
    "a region": _NO_REGIONS,
    "a CUDA region": _NO_REGIONS,
    "an input in an unknown region": _NO_REGIONS,
    "an output in an unknown region": _NO_REGIONS,
}

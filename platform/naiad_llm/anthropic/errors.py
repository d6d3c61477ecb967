"""Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from typing import Any

from naiad.frontends.http1.messages import json_response
from naiad.protocol.inference import Buffer
from naiad_llm.openai.errors import (
    BAD_REQUEST,
    FORBIDDEN,
    NOT_FOUND,
    SERVER_ERROR,
    TOO_LARGE,
    UNAUTHORIZED,
    UNAVAILABLE,
    ApiError,
)

_TYPES = {
    BAD_REQUEST: "invalid_request_error",
    UNAUTHORIZED: "authentication_error",
    FORBIDDEN: "permission_error",
    NOT_FOUND: "not_found_error",
    TOO_LARGE: "request_too_large",
    429: "rate_limit_error",
    UNAVAILABLE: "overloaded_error",
}


def error_document(error: ApiError) -> dict[str, Any]:
    """The JSON object of an error, for a response body or an event."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < SERVER_ERROR else "api_error")
    message = error.document()["error"]["message"]
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # Anthropic's words, by which clients know to shorten it
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_response(error: ApiError) -> list[Buffer]:
    """The complete HTTP response for an error."""
    return json_response(error_document(error), error.status)

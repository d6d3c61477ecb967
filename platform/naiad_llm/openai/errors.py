"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from naiad.core.errors import Code, NaiadError, UnknownModelError
from naiad.frontends.http1.messages import json_response
from naiad.frontends.status import HTTP_STATUS
from naiad.protocol.inference import Buffer

BAD_REQUEST = 400
UNAUTHORIZED = 401
FORBIDDEN = 403
NOT_FOUND = 404
NOT_ALLOWED = 405
TOO_LARGE = 413
SERVER_ERROR = 500
UNAVAILABLE = 503


_MODEL_ERROR = "Error generating stream: "
"""Prefix of all errors of Triton's vLLM backend and of `vllm_like`; it does not help a client of this API."""
_UNKNOWN_ADAPTER = re.compile(
    r"LoRA feature is not enabled|LoRA .{0,500} is not supported, we currently support", re.DOTALL
)  # in errors of the same backends for the adapter in the name of a model
_TOO_MANY_TOKENS = re.compile(
    r"maximum context length is \d+|longer than the maximum model length of \d+|too long to fit into the model"
)
"""In errors of engines for a prompt that is longer than the model's context: OpenAI's and vLLM's texts. Clients shorten
a conversation when they see the code, which no other part of the error tells them."""


class ApiError(Exception):
    """An error response to a request."""

    def __init__(
        self,
        message: str,
        *,
        status: int = BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        wrong_secret: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param  # field of the request that caused the error; None if no single field did
        self.code = code  # OpenAI's error code; None if OpenAI defines none for this case
        # The wrong secret that the client sent, as `RefusalLog` names it; "" for any other error.
        self.wrong_secret = wrong_secret

    def document(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < SERVER_ERROR else "server_error"
        # A model's error text may hold lone surrogates, which UTF-8 cannot encode.
        message = self.message.encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> list[Buffer]:
        return json_response(self.document(), self.status)


ErrorResponse = Callable[[ApiError], list[Buffer]]


def to_api_error(problem: NaiadError, model: str) -> ApiError:
    """The error response for an error of the engine or of the model."""
    if isinstance(problem, UnknownModelError):
        return unknown_model_error(model, problem.message)
    if _UNKNOWN_ADAPTER.search(problem.message):
        return unknown_model_error(model, problem.message.removeprefix(_MODEL_ERROR))
    if _TOO_MANY_TOKENS.search(problem.message):
        return ApiError(problem.message.removeprefix(_MODEL_ERROR), code="context_length_exceeded")
    code = "model_not_ready" if problem.code is Code.UNAVAILABLE else None
    return ApiError(problem.message, status=HTTP_STATUS[problem.code], code=code)


def wrong_method(method: str, use: str) -> ApiError:
    """The response 405 for a path that takes other methods."""
    return ApiError(f"Not allowed to {method} here; use {use}", status=NOT_ALLOWED, code="method_not_allowed")


def unknown_model_error(model: str, reason: str = "") -> ApiError:
    """The response 404 for a model that does not exist."""
    detail = f" ({reason})" if reason else ""
    return ApiError(
        f"The model `{model}` does not exist{detail}; GET /v1/models lists those that do",
        status=NOT_FOUND,
        param="model",
        code="model_not_found",
    )

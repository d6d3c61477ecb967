"""`POST /v1/embeddings`: its request, the inference request for it, and its response."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson

from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange, json_response
from naiad.frontends.openai.errors import SERVER_ERROR, ApiError, to_api_error
from naiad.frontends.openai.requests import ANYTHING, TEXT, FieldRule, to_json, validate_fields
from naiad.frontends.openai.vllm_tensors import EMBEDDING_REQUEST, build_infer_request, can_embed, strings, sum_of
from naiad.protocol.inference import InferRequest, InferResponse
from naiad.protocol.metadata import ModelMetadata

logger = logging.getLogger("naiad.openai")

_RULES: dict[str, FieldRule] = {
    "model": TEXT,
    "input": ANYTHING,
    "dimensions": FieldRule("an integer", 1),
    "encoding_format": TEXT,
    "user": TEXT,
}


def read_embedding_request(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request for embeddings.

    Raises:
        ApiError: If a field is invalid.
    """
    given = validate_fields(document, _RULES, ("model", "input"))
    if given.get("encoding_format", "float") not in {"float", "base64"}:
        raise ApiError("`encoding_format` must be float or base64", param="encoding_format")
    if not _is_input(given["input"]):
        raise ApiError(
            "`input` must be a non-empty string, an array of such strings, an array of token ids or an array of such "
            "arrays",
            param="input",
        )
    return given


def _is_input(value: object) -> bool:
    if isinstance(value, str):
        return bool(value)
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(item, list) for item in value):
        return all(_are_tokens(item) for item in value)
    return all(isinstance(item, str) and item for item in value) or _are_tokens(value)


def _are_tokens(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(token, int) and not isinstance(token, bool) for token in value)


def infer_request(given: Mapping[str, Any], metadata: ModelMetadata) -> InferRequest:
    """The inference request for the fields *given*.

    Raises:
        ApiError: If the model does not support embeddings.
    """
    if not can_embed(metadata):
        raise ApiError(
            f"The model `{metadata.name}` does not support embeddings: it has no string input '{EMBEDDING_REQUEST}'",
            param="model",
        )
    document: dict[str, Any] = {"input": given["input"]}
    if "dimensions" in given:
        document["pooling_params"] = {"dimensions": given["dimensions"]}
    values = {EMBEDDING_REQUEST: to_json(document), "stream": False, "return_num_input_tokens": True}
    return build_infer_request(metadata, values, {})


class EmbeddingSink:
    """Responds with the vectors of the model's first response; further responses are discarded."""

    __slots__ = ("_exchange", "_is_base64", "_model", "_on_sent")

    def __init__(self, exchange: HttpExchange, given: Mapping[str, Any], on_sent: Callable[[], None]) -> None:
        self._exchange: HttpExchange | None = exchange
        self._model = str(given["model"])
        self._is_base64 = given.get("encoding_format") == "base64"
        self._on_sent = on_sent

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - signature of Sink
        """Write the response."""
        if response is not None:
            self._on_sent()  # discarded responses too: otherwise a model that sends more would block forever
        exchange = self._exchange
        if exchange is None or (response is None and not final):
            return
        self._exchange = None
        try:
            if response is None:
                raise ApiError("The model returned no response", status=SERVER_ERROR)
            if response.error is not None:
                raise to_api_error(response.error, self._model)
            exchange.respond(json_response(self._document(response)))
        except ApiError as error:
            exchange.respond(error.response())
        except Exception:
            logger.exception("cannot write the response of model '%s'", self._model)
            exchange.respond(ApiError(INTERNAL_ERROR, status=SERVER_ERROR).response())

    def _document(self, response: InferResponse) -> dict[str, Any]:
        outputs = {output.name: output for output in response.outputs}
        vectors = [self._vector(text) for text in strings(outputs.get("text_output"))]
        tokens = sum_of(outputs.get("num_input_tokens")) or 0
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
            ],
            "model": self._model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def _vector(self, text: str) -> object:
        try:
            numbers = orjson.loads(text)
            array = np.array(numbers, "<f4")
        except (ValueError, TypeError) as problem:
            raise ApiError(f"The model did not return a vector: {problem}", status=SERVER_ERROR) from None
        if array.ndim != 1:
            raise ApiError(
                f"The model did not return a vector: the array has {array.ndim} dimensions", status=SERVER_ERROR
            )
        return base64.b64encode(array.tobytes()).decode() if self._is_base64 else numbers

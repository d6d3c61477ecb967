"""Requests that are too long for the event loop, read in an offload process (`naiad.frontends.offload`).

The functions return what those for short requests return, or the `ApiError` that these raise. The number of values in a
request is limited, since each is an object in the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from naiad.core.errors import NaiadError, without_frames
from naiad.frontends.kserve_http.json_structure import check_structure
from naiad_llm.openai.embeddings import embedding_document, read_embedding_request
from naiad_llm.openai.errors import ApiError
from naiad_llm.openai.requests import parse_body

MAX_VALUES = 100_000  # values in a long request, apart from the token ids of embeddings

T = TypeVar("T")


class EmbeddingRequest(NamedTuple):
    """A request for embeddings: *given* has its fields, without the input where the request was long."""

    given: Mapping[str, Any]
    document: str


def read_long(content: memoryview, read: Callable[[dict[str, Any]], T], limit: int) -> T | ApiError:
    """What *read* returns for the JSON object in a long body."""
    try:
        document = _parse(content, limit)
        _check_count(document)
        return read(document)
    except ApiError as error:
        return without_frames(error)


def read_long_embedding(
    content: memoryview, read: Callable[[dict[str, Any]], EmbeddingRequest], limit: int
) -> EmbeddingRequest | ApiError:
    """The request for embeddings in a long body, without its input, whose token ids are not counted."""
    try:
        request = read(_parse(content, limit))
        rest = {name: value for name, value in request.given.items() if name != "input"}
        _check_count(rest)
        return EmbeddingRequest(rest, request.document)
    except ApiError as error:
        return without_frames(error)


def read_embedding(document: dict[str, Any]) -> EmbeddingRequest:
    """The request for embeddings in the body *document*."""
    given = read_embedding_request(document)
    return EmbeddingRequest(given, embedding_document(given))


def _parse(content: memoryview, limit: int) -> dict[str, Any]:
    text = bytes(content)
    try:
        check_structure(text, max_objects=MAX_VALUES)
    except NaiadError as error:
        raise ApiError(error.message) from None
    return parse_body(text, limit)


def _check_count(document: Mapping[str, Any]) -> None:
    rest: list[object] = [document]
    count = 0
    while rest:
        value = rest.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(inner)
        if count > MAX_VALUES:
            raise ApiError(f"The request has more than {MAX_VALUES} values in its objects and arrays")
        rest += inner

"""A response as the flat JSON object of the generate extension."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import orjson

from naiad.core.errors import NaiadError
from naiad.frontends.http1.messages import INTERNAL_ERROR, error_document
from naiad.frontends.kserve_http.json_tensors import from_tensor, rendered_steps
from naiad.protocol.datatypes import BYTE_SIZES, Datatype
from naiad.protocol.inference import InferResponse, OutputTensor

logger = logging.getLogger("naiad.http")

_PREFIX = 4  # bytes of the length before an element of BYTES
OK = 200
FAILED = 400  # Status of every error of the model or its queue. Unlike `infer`, generate does not distinguish them.


def generate_response(result: InferResponse) -> tuple[int, bytes]:
    """The HTTP status of a response, if it is the first one of its request, and its JSON.

    Members are sorted by the bytes of their names. Of equal names the server's members win over parameters, and
    parameters over outputs (SRV src/http_server.cc, `FinalizeResponse`).
    """
    if result.error is not None:
        return FAILED, error_document(result.error.message)
    try:
        return OK, orjson.dumps(_document(result), option=orjson.OPT_SORT_KEYS)
    except Exception as problem:  # noqa: BLE001 - any error becomes the response
        return failed_response(problem, result.model_name)


def generate_response_steps(result: InferResponse) -> Generator[None, None, tuple[int, list[bytes]]]:
    """As `generate_response`, in steps of about a millisecond; the JSON is in parts."""
    members = _members(result)
    rendered: dict[str, list[bytes]] = {name: [orjson.dumps(value)] for name, value in members.items()}
    for tensor in result.outputs:
        if tensor.name not in rendered:
            pieces = yield from rendered_steps(tensor, exact=False)
            rendered[tensor.name] = pieces if _has_one_element(tensor) else [b"[", *pieces, b"]"]
    parts: list[bytes] = []
    for name in sorted(rendered, key=str.encode):
        parts += (b"," if parts else b"{", orjson.dumps(name), b":", *rendered[name])
    return OK, [*parts, b"}"]


def _has_one_element(tensor: OutputTensor) -> bool:
    size = len(tensor.data)
    if tensor.datatype is Datatype.BYTES:
        return size >= _PREFIX and size == _PREFIX + int.from_bytes(tensor.data[:_PREFIX], "little")
    return size == BYTE_SIZES[tensor.datatype]


def failed_response(error: Exception, model_name: str) -> tuple[int, bytes]:
    """The status and JSON for an exception that made the response of a model impossible."""
    if isinstance(error, NaiadError):
        return FAILED, error_document(error.message)
    logger.error("cannot write the response of '%s'", model_name, exc_info=error)
    return FAILED, error_document(INTERNAL_ERROR)


def _document(result: InferResponse) -> dict[str, Any]:
    document = _members(result)
    for tensor in result.outputs:
        if tensor.name not in document:
            elements = from_tensor(tensor)
            document[tensor.name] = elements[0] if len(elements) == 1 else elements
    return document


def _members(result: InferResponse) -> dict[str, Any]:
    document: dict[str, Any] = {"id": result.request_id} if result.request_id else {}
    document["model_name"] = result.model_name
    document["model_version"] = str(result.model_version)
    for name, value in result.parameters.items():
        document.setdefault(name, value)
    return document

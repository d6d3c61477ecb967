"""A response as the flat JSON object of the generate extension."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from naiad.errors import NaiadError
from naiad.frontends.http1.messages import INTERNAL_ERROR, error_document
from naiad.frontends.kserve_http.json_tensors import from_tensor
from naiad.protocol.inference import InferResponse

logger = logging.getLogger("naiad.http")

OK = 200
FAILED = 400
"""Status of every error of the model or its queue. Unlike `infer`, generate does not distinguish them."""


def generate_response(result: InferResponse) -> tuple[int, bytes]:
    """The HTTP status of a response, if it is the first one of its request, and its JSON.

    Members are sorted by the bytes of their names. Of equal names the server's members win over parameters, and
    parameters over outputs (SRV src/http_server.cc, `FinalizeResponse`).
    """
    if result.error is not None:
        return FAILED, error_document(result.error.message)
    try:
        return OK, orjson.dumps(_document(result), option=orjson.OPT_SORT_KEYS)
    except NaiadError as problem:
        return FAILED, error_document(problem.message)
    except Exception:
        logger.exception("cannot write the response of '%s'", result.model_name)
        return FAILED, error_document(INTERNAL_ERROR)


def _document(result: InferResponse) -> dict[str, Any]:
    document: dict[str, Any] = {"id": result.request_id} if result.request_id else {}
    document["model_name"] = result.model_name
    document["model_version"] = str(result.model_version)
    for name, value in result.parameters.items():
        document.setdefault(name, value)
    for tensor in result.outputs:
        if tensor.name not in document:
            elements = from_tensor(tensor)
            document[tensor.name] = elements[0] if len(elements) == 1 else elements
    return document

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
"""The status of any error the model or its queue answers with: unlike `infer`, generate does not tell them apart."""


def generate_response(answer: InferResponse) -> tuple[int, bytes]:
    """The status that *answer* means where it is the first one, and its JSON.

    Names are in the order of their bytes. Of equal ones that of the server wins over the model's parameters, and those
    over outputs (SRV src/http_server.cc, `FinalizeResponse`).
    """
    if answer.error is not None:
        return FAILED, error_document(answer.error.message)
    try:
        return OK, orjson.dumps(_document(answer), option=orjson.OPT_SORT_KEYS)
    except NaiadError as problem:
        return FAILED, error_document(problem.message)
    except Exception:
        logger.exception("cannot write the response of '%s'", answer.model_name)
        return FAILED, error_document(INTERNAL_ERROR)


def _document(answer: InferResponse) -> dict[str, Any]:
    document: dict[str, Any] = {"id": answer.request_id} if answer.request_id else {}
    document["model_name"] = answer.model_name
    document["model_version"] = str(answer.model_version)
    for name, value in answer.parameters.items():
        document.setdefault(name, value)
    for tensor in answer.outputs:
        if tensor.name not in document:
            elements = from_tensor(tensor)
            document[tensor.name] = elements[0] if len(elements) == 1 else elements
    return document

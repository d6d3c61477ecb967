"""Requests to llama.cpp's own HTTP server, for the tokenizer, which xllamacpp offers in no other way."""

from __future__ import annotations

import http.client
import json
from typing import Any, Dict, List, Mapping, Union
from urllib.parse import urlsplit

from vllm_like.engines import llama_responses

_TIMEOUT_SECONDS = 60.0


def post(address: str, key: str, path: str, body: Mapping[str, Any]) -> Dict[str, Any]:
    """The JSON object that llama.cpp responds with.

    Args:
        address: Of its server, on the loopback interface.
        key: Its API key.
        path: Of the endpoint.
        body: The JSON object to send.

    Raises:
        CallerError: If llama.cpp rejects the request.
    """
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=_TIMEOUT_SECONDS)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        document: Dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    error = llama_responses.parse_error(document)
    if error is not None:
        raise error
    return document


def piece_text(piece: Union[str, List[int]]) -> str:
    """The text of a token; llama.cpp sends one that is not valid UTF-8 as bytes."""
    return piece if isinstance(piece, str) else bytes(piece).decode("utf-8", "replace")

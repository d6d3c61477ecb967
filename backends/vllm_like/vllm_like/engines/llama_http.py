"""Requests to llama.cpp's own HTTP server, for the tokenizer, which xllamacpp offers in no other way."""

from __future__ import annotations

import http.client
import json
from typing import Any, Dict, List, Mapping, Optional, Union
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
    return _ask(address, key, "POST", path, json.dumps(body))


def get(address: str, key: str, path: str) -> Dict[str, Any]:
    """The JSON object of a path that needs no body; *address* and *key* are as for `post`."""
    return _ask(address, key, "GET", path, None)


def _ask(address: str, key: str, method: str, path: str, body: Optional[str]) -> Dict[str, Any]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=_TIMEOUT_SECONDS)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request(method, path, body, headers)
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

"""One request over a plain socket, and its response in a form that can be stored, compared and read.

Requests are sent exactly as the case states them, including wrong lengths and malformed bodies.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import zlib
from collections.abc import Iterable
from typing import Any

from conformance.cases import Case

HOST = "127.0.0.1"
# Long enough for a model's first call on a busy machine. A missing response costs this time once.
TIMEOUT = 5.0

Answer = dict[str, Any]


def ask(port: int, case: Case, repository: str) -> Answer:
    """Send the case's bytes; return the response, with the repository's path masked."""
    with contextlib.closing(socket.create_connection((HOST, port), timeout=TIMEOUT)) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # A server may respond and close before it has read everything.
            connection.sendall(case.wire(port))
            if case.cut_off:
                connection.shutdown(socket.SHUT_WR)
        with contextlib.closing(http.client.HTTPResponse(connection, method=case.method)) as response:
            try:
                response.begin()
                body = response.read()
            except (http.client.HTTPException, ConnectionError):
                return {"closed": True}
            except TimeoutError:
                return {"silent": True}
    answer: Answer = _mask(_readable(response, body), repository, case.volatile)
    return answer


def _readable(response: http.client.HTTPResponse, body: bytes) -> Answer:
    answer: Answer = {"status": response.status}
    encoding = response.getheader("Content-Encoding")
    if encoding:
        answer["content_encoding"] = encoding
        body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
    header_length = response.getheader("Inference-Header-Content-Length")
    if header_length is not None:
        # The length depends on spaces in JSON. A wrong one would make the parts unreadable.
        body, tail = body[: int(header_length)], body[int(header_length) :]
        answer["tail"] = tail.hex()
    if response.status == http.HTTPStatus.OK:
        # For errors, the reference's content type (text/plain or JSON) depends on the code path; clients ignore it.
        answer["content_type"] = response.getheader("Content-Type")
    if body:
        try:
            answer["json"] = json.loads(body)
        except ValueError:
            answer["text"] = body.decode("latin-1")
    return answer


def _mask(value: Any, repository: str, volatile: Iterable[str]) -> Any:
    if isinstance(value, dict):
        return {key: "<any>" if key in volatile else _mask(entry, repository, volatile) for key, entry in value.items()}
    if isinstance(value, list):
        return [_mask(entry, repository, volatile) for entry in value]
    if isinstance(value, str):
        return value.replace(repository, "<repository>")
    return value

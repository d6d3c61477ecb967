"""Requests to llama.cpp's own HTTP server: for the tokenizer, and for the paths that a model serves.

The server listens on a socket without a name in the file system, which nothing has to remove, and demands a key.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import select
import socket
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

from vllm_like.engines import llama_responses
from vllm_like.engines.base import CANCEL_POLL_SECONDS, PathRequest, PathSink

_TIMEOUT_SECONDS = 60.0
_OK = 200
_JOINED = {"content": "", "tokens": [], "completion_probabilities": []}
"""Members of the events of a stream of which a whole response has all."""


class LlamaServer:
    """A client of the server. `configure` makes the server listen where this object connects to."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(32)
        self._address = f"\0naiad-{secrets.token_hex(16)}.sock"  # llama.cpp recognises sockets by the suffix

    def configure(self, parameters: Any) -> None:
        """Set address and key in the `CommonParams` of the server."""
        if hasattr(parameters, "hostnames"):
            parameters.hostnames = [self._address]
        else:  # releases before July 2026
            parameters.hostname = self._address
        parameters.api_keys = [self._key]

    def ask(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """The JSON object that llama.cpp responds with; `CallerError` if it rejects the request."""
        method, text = ("GET", None) if body is None else ("POST", json.dumps(body))
        with self._requested(method, path, text) as connection:
            connection.sock.settimeout(_TIMEOUT_SECONDS)
            document: Dict[str, Any] = llama_responses.checked(json.loads(connection.getresponse().read()))
            return document

    def forward(self, request: PathRequest, sink: PathSink) -> None:
        """Pass a request on, and the response as it comes.

        llama.cpp notices that a client has left when it writes: it streams texts also where the client wants a whole.
        """
        error: Optional[BaseException] = None
        try:
            body, is_joined = request.body, False
            if request.path in ("/completion", "/infill"):
                is_joined = not request.document.get("stream")
                progress = {"return_progress": True} if is_joined else {}
                body = json.dumps({**request.document, **progress, "stream": True}).encode()
            with self._requested("POST", request.path, body, request.content_type) as connection:
                _forward(connection, sink, request.document if is_joined else None)
        except Exception as raised:  # noqa: BLE001 - sent to the client
            error = raised.with_traceback(None)  # which refers to this frame, and so to the error
        sink.end(error)

    @contextlib.contextmanager
    def _requested(
        self, method: str, path: str, body: Union[str, bytes, None], content_type: str = "application/json"
    ) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(self._address)
            headers = {"Authorization": f"Bearer {self._key}", "Content-Type": content_type}
            connection.request(method, path, body, headers)
            yield connection
        finally:
            connection.close()


def _forward(connection: http.client.HTTPConnection, sink: PathSink, joined: Optional[Mapping[str, Any]]) -> None:
    """Read a response; *joined* is the request for a whole that llama.cpp streams, else None."""
    while not select.select([connection.sock], [], [], CANCEL_POLL_SECONDS)[0]:
        if sink.is_cancelled():
            return
    response = connection.getresponse()
    kind = response.getheader("Content-Type", "")
    if not kind.startswith("text/event-stream"):
        sink.push(response.status, kind, response.read())
        return
    events = []
    for event in _events(response):
        if sink.is_cancelled():
            return
        if joined is None:
            sink.push(response.status, kind, event)
        elif event.startswith((b"data: {", b"error: {")):
            events.append(json.loads(event.partition(b": ")[2]))
    if joined is not None:
        status, document = _join(events, joined)
        sink.push(status, "application/json; charset=utf-8", json.dumps(document, ensure_ascii=False).encode())


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    lines: List[bytes] = []
    for line in response:
        lines.append(line)
        if line == b"\n":
            yield b"".join(lines)
            lines.clear()


def _join(events: List[Dict[str, Any]], request: Mapping[str, Any]) -> Any:
    """Status and document of the response that llama.cpp would have sent as a whole."""
    found: Dict[int, Dict[str, Any]] = {}
    for event in events:
        if "error" in event:
            return event["error"].get("code", 500), event
        if "prompt_progress" in event:
            continue
        before = found.get(event.get("index", 0), {})
        texts = {name: before.get(name, empty) + event.get(name, empty) for name, empty in _JOINED.items()}
        found[event.get("index", 0)] = {**event, **texts}
    for document in found.values():
        if not request.get("return_tokens"):
            document["tokens"] = []
        if not document["completion_probabilities"]:
            del document["completion_probabilities"]
    return _OK, found[0] if len(found) == 1 else list(found.values())


def piece_text(piece: Union[str, List[int]]) -> str:
    """The text of a token; llama.cpp sends one that is not valid UTF-8 as bytes."""
    return piece if isinstance(piece, str) else bytes(piece).decode("utf-8", "replace")

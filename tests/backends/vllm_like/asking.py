"""Requests to language models over HTTP: whole answers, events as they come, and streams that are left."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

from support.server import ServerProcess


def ask(server: ServerProcess, model: str, **body: Any) -> dict[str, Any]:
    """The one answer of `generate`."""
    reply = server.post(f"/v2/models/{model}/generate", body)
    assert reply.status == 200, reply.body
    return reply.json()


def refusal(server: ServerProcess, model: str, **body: Any) -> str:
    """The error of `generate`."""
    reply = server.post(f"/v2/models/{model}/generate", body)
    assert reply.status == 400, reply.body
    return reply.error


class Stream:
    """One request to `generate_stream`; iterating gives its events as they come."""

    def __init__(self, server: ServerProcess, model: str, **body: Any) -> None:
        host, port = server.http_url.split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps({"stream": True, **body}))
        self._response = self._connection.getresponse()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._response:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def leave(self) -> None:
        """Close the connection, whatever is still to come."""
        self._response.close()
        self._connection.close()

    def __enter__(self) -> Stream:  # noqa: PYI034 - typing.Self is 3.11+
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def events(server: ServerProcess, model: str, **body: Any) -> list[dict[str, Any]]:
    """All events of `generate_stream`."""
    with Stream(server, model, **body) as stream:
        return list(stream)


def joined(parts: list[dict[str, Any]], name: str = "text_output") -> str:
    return "".join(part[name] for part in parts)


class Background:
    """A call made by a thread of its own."""

    def __init__(self, function: Any, *args: Any, **options: Any) -> None:
        self._result: Any = None
        self._thread = threading.Thread(target=self._run, args=(function, args, options), daemon=True)
        self._thread.start()

    def _run(self, function: Any, args: Any, options: Any) -> None:
        try:
            self._result = function(*args, **options)
        except BaseException as error:
            self._result = error

    def result(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the call has not come back"
        assert not isinstance(self._result, BaseException), self._result
        return self._result


def metric(server: ServerProcess, name: str, model: str) -> float:
    """The value of one of a model's metrics."""
    # The server's own metrics have none of vLLM's labels.
    labels = rf'(?:engine="0",)?model="{model}",(?:model_name="{model}",)?version="1"'
    line = re.compile(rf"{re.escape(name)}\{{{labels}\}} (.+)")
    return float(next(found[1] for found in map(line.fullmatch, server.metrics().splitlines()) if found))

"""Minimal clients: they share two cores with the measured servers, so they must use little CPU.

Each stream is a thread that sends its prompts one after the other, each on a new connection, and reads every response
to its end.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from tritonclient.grpc import service_pb2

from bench.llm import h2

HOST = "127.0.0.1"
_TIMEOUT = 120
_BUFFER = 1 << 16
First = Callable[[], None]
Ask = Callable[[str, int, First], None]
"""Requests a number of tokens for a prompt, calls back at the first text, returns at the end."""


class StreamError(Exception):
    """A stream ended with an error."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """One measurement.

    Attributes:
        rate: Tokens per second of all streams together.
        first: Seconds to the first text of each request.
        cpu: CPU seconds of the server and of its guest for each token; the engine counts as a guest.
    """

    rate: float
    first: Sequence[float]
    cpu: Sequence[float] = ()


def measure(ask: Ask, streams: Sequence[Sequence[str]], tokens: int) -> Reading:
    """Send the prompts of all streams; the streams run concurrently."""
    firsts: list[float] = []
    problems: list[BaseException] = []
    began = time.perf_counter()
    threads = [threading.Thread(target=_ask_all, args=(ask, each, tokens, firsts, problems)) for each in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise SystemExit(f"a stream failed: {problems[0]}")
    return Reading(sum(map(len, streams)) * tokens / (time.perf_counter() - began), firsts)


def _ask_all(ask: Ask, prompts: Sequence[str], tokens: int, firsts: list[float], problems: list[BaseException]) -> None:
    try:
        for prompt in prompts:
            began = time.perf_counter()
            ask(prompt, tokens, lambda began=began: firsts.append(time.perf_counter() - began))  # type: ignore[misc]
    except Exception as problem:  # noqa: BLE001 - the caller reports every error
        problems.append(problem)


def sampling(tokens: int) -> str:
    """Sampling parameters for greedy decoding of exactly *tokens* tokens."""
    return json.dumps({"max_tokens": tokens, "temperature": 0, "ignore_eos": True})


def over_http(port: int, model: str) -> Ask:
    """A client of `generate_stream`."""

    def ask(prompt: str, tokens: int, first: First) -> None:
        body = {"text_input": prompt, "stream": True, "sampling_parameters": sampling(tokens)}
        _post(port, f"/v2/models/{model}/generate_stream", body, first)

    return ask


def over_openai(port: int, model: str) -> Ask:
    """A client of `/v1/completions`."""

    def ask(prompt: str, tokens: int, first: First) -> None:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        _post(port, "/v1/completions", {**body, "stream": True}, first)

    return ask


def over_grpc(port: int, model: str) -> Ask:
    """A client of `ModelStreamInfer`."""

    def ask(prompt: str, tokens: int, first: First) -> None:
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, datatype, content in (
            ("text_input", "BYTES", _packed(prompt)),
            ("stream", "BOOL", b"\x01"),
            ("sampling_parameters", "BYTES", _packed(sampling(tokens))),
        ):
            request.inputs.add(name=name, datatype=datatype, shape=[1])
            request.raw_input_contents.append(content)
        with _connection(port) as connection:
            answers = h2.call(connection, _STREAM_INFER, request.SerializeToString(), first)
        for answer in answers:
            error = service_pb2.ModelStreamInferResponse.FromString(answer).error_message
            if error:
                raise StreamError(error)
        if not answers:
            raise StreamError("ModelStreamInfer answered nothing")

    return ask


_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"


def _connection(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port), _TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _packed(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def _post(port: int, path: str, document: object, first: First) -> None:
    """Send a POST request and read until the connection is closed; does not parse events, but detects errors."""
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with _connection(port) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        begun = b""
        while b"data: " not in begun:
            received = connection.recv(_BUFFER)
            if not received:
                raise StreamError(f"{path} answered without an event: {begun.decode(errors='replace')}")
            begun += received
        first()
        last = begun
        while received := connection.recv(_BUFFER):
            last = received
    if not begun.startswith(b"HTTP/1.1 200") or b'"error"' in begun + last:
        raise StreamError(f"{path} answered {(begun + last).decode(errors='replace')}")

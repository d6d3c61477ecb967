"""Clients that do as little as can be done: the servers are measured, on two cores that both sides share.

Each asks all prompts at the same time, a thread and a connection each, and reads until the last answer has ended.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

HOST = "127.0.0.1"
_TIMEOUT = 120
_BUFFER = 1 << 16
First = Callable[[], None]
Ask = Callable[[str, int, First], None]
"""Asks a prompt for a number of tokens, calls back at the first text, returns at the end."""


class StreamError(Exception):
    """A stream ended otherwise than it should."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """One measurement.

    Attributes:
        rate: Tokens per second of all streams together.
        first: Seconds to the first text of each stream.
        cpu: Seconds of CPU that the server and its guest took for a token; the engine is its own guest.
    """

    rate: float
    first: Sequence[float]
    cpu: Sequence[float] = ()


def measure(ask: Ask, prompts: Sequence[str], tokens: int) -> Reading:
    """Ask all prompts at the same time."""
    firsts = [0.0] * len(prompts)
    problems: list[BaseException] = []
    began = time.perf_counter()

    def run(place: int, prompt: str) -> None:
        def first() -> None:
            firsts[place] = time.perf_counter() - began

        try:
            ask(prompt, tokens, first)
        except Exception as problem:  # noqa: BLE001 - told below
            problems.append(problem)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(prompts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise SystemExit(f"a stream failed: {problems[0]}")
    return Reading(len(prompts) * tokens / (time.perf_counter() - began), firsts)


def sampling(tokens: int) -> str:
    """Greedy, and exactly so many tokens."""
    return json.dumps({"max_tokens": tokens, "temperature": 0, "ignore_eos": True})


def over_http(port: int, model: str) -> Ask:
    """`generate_stream`."""

    def ask(prompt: str, tokens: int, first: First) -> None:
        body = {"text_input": prompt, "stream": True, "sampling_parameters": sampling(tokens)}
        _post(port, f"/v2/models/{model}/generate_stream", body, first)

    return ask


def over_openai(port: int, model: str) -> Ask:
    """`/v1/completions`."""

    def ask(prompt: str, tokens: int, first: First) -> None:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        _post(port, "/v1/completions", {**body, "stream": True}, first)

    return ask


def over_grpc(port: int, model: str) -> Ask:
    """`ModelStreamInfer`."""

    def ask(prompt: str, tokens: int, first: First) -> None:
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, datatype, content in (
            ("text_input", "BYTES", _packed(prompt)),
            ("stream", "BOOL", b"\x01"),
            ("sampling_parameters", "BYTES", _packed(sampling(tokens))),
        ):
            request.inputs.add(name=name, datatype=datatype, shape=[1])
            request.raw_input_contents.append(content)
        with grpc.insecure_channel(f"{HOST}:{port}", _OWN_CONNECTION) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            is_first = True
            for answer in stub.ModelStreamInfer(iter([request]), timeout=_TIMEOUT):
                if answer.error_message:
                    raise StreamError(answer.error_message)
                if is_first:
                    is_first = False
                    first()

    return ask


_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


def _packed(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def _post(port: int, path: str, document: object, first: First) -> None:
    """Post, and read until the connection is closed; events are not taken apart, but an error is seen."""
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection((HOST, port), _TIMEOUT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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

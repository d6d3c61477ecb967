"""Requests of 10 MB that fail: every kind of failure, over every frontend. Each function checks that it has failed."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import grpc
from attacks.failing_models import CALLS, ENSEMBLES, MANY
from support.server import HOST, ServerProcess
from support.waiting import until

from naiad.frontends.kserve_grpc import service_pb2 as pb

SIZE = 10_000_000
_BATCH = (1, SIZE // 4)
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each call, so that each frontend process gets some
)

Fail = Callable[[ServerProcess], None]


class Failure(NamedTuple):
    """One kind of failure: its name, and what makes a request fail so."""

    name: str
    fail: Fail


# -- the requests -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def numbers() -> bytes:
    """The bytes of the input."""
    return bytes(SIZE)


@lru_cache(maxsize=1)
def words() -> str:
    """The text of the input."""
    return "word " * (SIZE // 5)


def _binary(name: str = "IN", shape: Sequence[int] = (SIZE // 4,), **more: Any) -> tuple[bytes, dict[str, str]]:
    document = {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": SIZE}},
        ],
        **more,
    }
    head = json.dumps(document).encode()
    return head + numbers(), {"Inference-Header-Content-Length": str(len(head))}


@lru_cache(maxsize=1)
def _json_numbers() -> bytes:
    text = ",".join(["0.125"] * (SIZE // 6))
    return f'{{"inputs":[{{"name":"IN","datatype":"FP32","shape":[{SIZE // 6}],"data":[{text}]}}]}}'.encode()


def _message(
    model: str, *, name: str = "IN", outputs: tuple[str, ...] = (), shape: Sequence[int] = (SIZE // 4,), **more: Any
) -> Any:
    request = pb.ModelInferRequest(model_name=model, id="7", raw_input_contents=[numbers()], **more)
    request.inputs.add(name=name, datatype="FP32", shape=shape)
    for output in outputs:
        request.outputs.add(name=output)
    return request


def _typed(model: str) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="IN", datatype="FP32", shape=[SIZE // 4])
    tensor.contents.fp32_contents.extend([0.5] * (SIZE // 4))
    return request


# -- the clients ------------------------------------------------------------------------------------------------------


def _post(port: int, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=240)) as connection:
        connection.request("POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()


def _check(text: bytes | str, expected: str) -> None:
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    assert expected in shown, f"{expected!r} is not in {shown[:500]!r}"


def http_infer(server: ServerProcess, model: str, expected: str, **more: Any) -> None:
    """Binary tensors over HTTP."""
    status, body = _post(server.http_port, f"/v2/models/{model}/infer", *_binary(**more))
    assert status >= 400, body[:500]
    _check(body, expected)


def http_body(server: ServerProcess, model: str, expected: str, body: bytes, **headers: str) -> None:
    """Any body over HTTP."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, answer = _post(server.http_port, f"/v2/models/{model}", body, named)
    assert status >= 400, answer[:500]
    _check(answer, expected)


def http_disconnect(
    server: ServerProcess, path: str, body: bytes, headers: dict[str, str], port: int | None = None
) -> None:
    """A client that disconnects while its request is executed."""
    port = port or server.http_port
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=240)) as connection:
        connection.request("POST", path, body, headers)
        until(lambda: _is_waiting(server), "the request to be executed")
    until(lambda: not _is_waiting(server), "the request to end")


def _is_waiting(server: ServerProcess) -> bool:
    """Whether a model waits to be cancelled."""
    return (server.work / "waiting").exists()


@contextlib.contextmanager
def _channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_url, _OPTIONS) as channel:
        yield channel


def grpc_infer(
    server: ServerProcess, message: Callable[[], Any], expected: str, *, timeout: float = 240, **more: Any
) -> None:
    """One call of ModelInfer."""
    with _channel(server) as channel:
        call = channel.unary_unary(
            _INFER,
            request_serializer=lambda each: each if isinstance(each, bytes) else each.SerializeToString(),
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        try:
            response = call(message(), timeout=timeout, **more)
        except grpc.RpcError as error:
            _check(f"{error.code().name} {error.details()}", expected)
        else:
            raise AssertionError(f"the call has not failed: {response.model_name}")


def grpc_stream(
    server: ServerProcess,
    message: Callable[[], Any],
    expected: str | None,
    *,
    count: int = 1,
    timeout: float = 240,
    metadata: tuple[tuple[str, str], ...] = (),
) -> None:
    """A stream with *count* requests; its last response has the error, or its status. None: there is no error."""
    texts = []
    with _channel(server) as channel:
        call = channel.stream_stream(
            _STREAM,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        try:
            texts = [each.error_message for each in call(iter([message()] * count), timeout=timeout, metadata=metadata)]
        except grpc.RpcError as error:
            texts.append(f"{error.code().name} {error.details()}")
    found = "\n".join(filter(None, texts))
    assert bool(found) is (expected is not None), texts
    _check(found, expected or "")


def grpc_cancel(server: ServerProcess, model: str, *, is_stream: bool) -> None:
    """A client that cancels its call while the model executes it."""
    with _channel(server) as channel:
        if is_stream:
            responses = channel.stream_stream(
                _STREAM,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelStreamInferResponse.FromString,
            )(iter([_message(model)]), timeout=240)
        else:
            responses = channel.unary_unary(
                _INFER,
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            ).future(_message(model), timeout=240)
        until(lambda: _is_waiting(server), "the request to be executed")
        responses.cancel()
    until(lambda: not _is_waiting(server), "the request to end")


def generate(server: ServerProcess, model: str, expected: str, *, is_stream: bool = False, text: str = "") -> None:
    """The generate extension."""
    path = f"/v2/models/{model}/generate{'_stream' if is_stream else ''}"
    status, body = _post(server.http_port, path, json.dumps({"text_input": text or words()}).encode())
    assert status >= 400 or is_stream or body.startswith(b'{"error"'), body[:500]
    _check(body, expected)


def openai(server: ServerProcess, path: str, expected: str, **document: Any) -> None:
    """A request of an API of language models."""
    port = server.openai_port  # type: ignore[attr-defined]
    status, body = _post(port, path, json.dumps(document).encode(), {"Content-Type": "application/json"})
    assert status >= 400 or document.get("stream") or path == "/mcp", body[:300]
    _check(body, expected)


def too_late(server: ServerProcess, fail: Fail) -> None:
    """A request that times out in the queue, as another one occupies the instance."""
    waiting = server.work / "waiting"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(_post, server.http_port, "/v2/models/queues/infer", *_binary(shape=_BATCH))
        try:
            until(lambda: _is_waiting(server), "the instance to be occupied")
            fail(server)
        finally:
            waiting.with_suffix(".end").touch()
        assert first.result()[0] == 200
    until(lambda: not _is_waiting(server), "the instance to be free")


def half_a_body(server: ServerProcess) -> None:
    """A client that disconnects within the body."""
    body, headers = _binary()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /v2/models/returns_all/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
    )
    with socket.create_connection((HOST, server.http_port), timeout=240) as connection:
        connection.sendall(head.encode() + body[: SIZE // 2])


# -- all of them ------------------------------------------------------------------------------------------------------

_OUTCOMES = {
    "raises": "no luck with 1 inputs",
    "answers_error": "no luck",
    "counts_wrong": "2",
    "wrong_type": "",
    "exits": "exit",
    "sequences": "must specify the START flag",
    "cached": "no luck with 1 inputs",
}


def _of_http() -> Iterator[Failure]:
    for model, expected in _OUTCOMES.items():
        more = {"parameters": {"sequence_id": 5}} if model == "sequences" else {}
        yield Failure(f"http {model}", partial(http_infer, model=model, expected=expected, **more))
    for model in (*CALLS, *ENSEMBLES, "remote_http", "remote_grpc", "remote_down"):
        yield Failure(f"http {model}", partial(http_infer, model=model, expected=""))
    yield Failure("http unknown model", partial(http_infer, model="nothing", expected="unknown model"))
    yield Failure("http unknown input", partial(http_infer, model="answers", expected="unexpected", name="X"))
    yield Failure("http wrong shape", partial(http_infer, model="answers", expected="", shape=(3,)))
    yield Failure("http unknown output", partial(http_infer, model="answers", expected="", outputs=[{"name": "NO"}]))
    yield Failure(
        "http wrong classes",
        partial(
            http_infer,
            model="returns_all",
            expected="",
            outputs=[{"name": "OUT", "parameters": {"classification": 2, "shared_memory_region": "none"}}],
        ),
    )
    yield Failure(
        "http unknown region",
        partial(
            http_infer,
            model="answers",
            expected="",
            outputs=[{"name": "OUT", "parameters": {"shared_memory_region": "none", "shared_memory_byte_size": 4}}],
        ),
    )
    yield Failure("http json raises", lambda s: http_body(s, "raises/infer", "no luck", _json_numbers()))
    yield Failure("http json broken", lambda s: http_body(s, "raises/infer", "", _json_numbers()[:-1]))
    yield Failure("http json twice", lambda s: http_body(s, "nothing/infer", "unknown model", _json_numbers()))
    yield Failure(
        "http gzip raises",
        lambda s: http_body(s, "raises/infer", "no luck", _zipped(_json_numbers()), Content_Encoding="gzip"),
    )
    yield Failure(
        "http gzip broken",
        lambda s: http_body(s, "raises/infer", "", b"no gzip" + numbers(), Content_Encoding="gzip"),
    )
    yield Failure(
        "http header length",
        lambda s: http_body(s, "answers/infer", "", _binary()[0], Inference_Header_Content_Length=str(SIZE * 2)),
    )
    yield Failure(
        "http raw raises",
        lambda s: http_body(s, "raises/infer", "no luck", numbers(), Inference_Header_Content_Length="0"),
    )
    yield Failure("http half a body", half_a_body)
    late = partial(
        http_infer, model="queues", expected="Request timeout expired", shape=_BATCH, parameters={"timeout": 1000}
    )
    yield Failure("http too late", partial(too_late, fail=late))
    yield Failure("http disconnect", lambda s: http_disconnect(s, "/v2/models/waits/infer", *_binary()))
    yield Failure("http no such path", lambda s: http_body(s, "raises/what", "", numbers()))
    yield Failure("http decoupled", partial(http_infer, model="sends_error", expected="decoupled"))


@lru_cache(maxsize=2)
def _zipped(body: bytes) -> bytes:
    return gzip.compress(body, 1)


def _of_grpc() -> Iterator[Failure]:
    for model, expected in _OUTCOMES.items():
        more: dict[str, Any] = {}
        if model == "sequences":
            more = {"parameters": {"sequence_id": pb.InferParameter(int64_param=5)}}
        make = partial(_message, model, **more)
        yield Failure(f"grpc {model}", partial(grpc_infer, message=make, expected=expected))
        yield Failure(f"stream {model}", partial(grpc_stream, message=make, expected=expected, count=2))
    for model in (*CALLS, *ENSEMBLES, "remote_http", "remote_grpc", "remote_down", "nothing"):
        make = partial(_message, model)
        yield Failure(f"grpc {model}", partial(grpc_infer, message=make, expected=""))
        yield Failure(f"stream {model}", partial(grpc_stream, message=make, expected=""))
    for model in MANY:
        if model != "sends_waits":
            expected = None if model in ("sends_none", "sends_three") else "no luck"
            yield Failure(f"stream {model}", partial(grpc_stream, message=partial(_message, model), expected=expected))
    for name, make in {
        "unknown input": partial(_message, "answers", name="X"),
        "unknown output": partial(_message, "answers", outputs=("NO",)),
        "decoupled": partial(_message, "sends_error"),
        "no version": partial(_message, "answers", model_version="9"),
        "bad version": partial(_message, "answers", model_version="x"),
        "typed raises": partial(_typed, "raises"),
        "typed unknown": partial(_typed, "nothing"),
    }.items():
        yield Failure(f"grpc {name}", partial(grpc_infer, message=make, expected=""))
        if name != "decoupled":
            yield Failure(f"stream {name}", partial(grpc_stream, message=make, expected=""))
    ends = (("triton_grpc_error", "true"),)
    for model in ("raises", "sends_error_later", "nothing"):
        yield Failure(
            f"stream ends with {model}",
            partial(grpc_stream, message=partial(_message, model), expected="", metadata=ends, count=2),
        )
    cut = lambda: _message("answers").SerializeToString()[:-100]  # noqa: E731 - as the others
    yield Failure("grpc cut", partial(grpc_infer, message=cut, expected=""))
    yield Failure(
        "grpc gzip raises",
        partial(grpc_infer, message=partial(_message, "raises"), expected="no luck", compression=grpc.Compression.Gzip),
    )
    soon = {"timeout": pb.InferParameter(int64_param=1000)}
    late = {
        "message": partial(_message, "queues", shape=_BATCH, parameters=soon),
        "expected": "Request timeout expired",
    }
    yield Failure("grpc too late", partial(too_late, fail=partial(grpc_infer, **late)))
    yield Failure("stream too late", partial(too_late, fail=partial(grpc_stream, **late)))
    waits = partial(_message, "waits")
    yield Failure("grpc deadline", partial(grpc_infer, message=waits, expected="DEADLINE_EXCEEDED", timeout=0.3))
    yield Failure("grpc cancel", partial(grpc_cancel, model="waits", is_stream=False))
    yield Failure("stream cancel", partial(grpc_cancel, model="waits", is_stream=True))
    yield Failure("stream cancel decoupled", partial(grpc_cancel, model="sends_waits", is_stream=True))


def _of_text() -> Iterator[Failure]:
    one = ("raises", "answers_error", "counts_wrong", "wrong_type", "exits")
    many = ("sends_error", "sends_error_later", "sends_none", "sends_three", "sends_then_raises")
    for model in (*one, *many):
        name = f"text_{model}"
        yield Failure(f"generate {model}", partial(generate, model=name, expected=""))
        yield Failure(f"generate_stream {model}", partial(generate, model=name, expected="", is_stream=True))
    yield Failure("generate nothing", partial(generate, model="nothing", expected="unknown model"))
    yield Failure(
        "generate_stream nothing", partial(generate, model="nothing", expected="unknown model", is_stream=True)
    )
    for path in ("generate", "generate_stream"):
        body = lambda: json.dumps({"text_input": words()}).encode()  # noqa: E731 - made when it is needed
        model = "text_sends_waits" if path == "generate_stream" else "text_waits"
        yield Failure(
            f"{path} disconnect",
            lambda s, path=path, model=model, body=body: http_disconnect(s, f"/v2/models/{model}/{path}", body(), {}),
        )


def _of_openai() -> Iterator[Failure]:
    """Each path with a model that fails at once, one that fails later, one that exits, and none."""
    paths: dict[str, Callable[[], dict[str, Any]]] = {
        "/v1/chat/completions": lambda: {"messages": _user(), "max_tokens": 5},
        "/v1/completions": lambda: {"prompt": words(), "max_tokens": 5},
        "/v1/responses": lambda: {"input": words(), "max_output_tokens": 5},
        "/v1/messages": lambda: {"messages": _user(), "max_tokens": 5},
        "/v1/embeddings": lambda: {"input": words()},
        "/v1/rerank": lambda: {"query": "which", "documents": [words()]},
        "/tokenize": lambda: {"prompt": words()},
        "/v1/messages/count_tokens": lambda: {"messages": _user()},
    }

    def ask(server: ServerProcess, path: str, expected: str, **more: Any) -> None:
        openai(server, path, expected, **paths[path](), **more)

    for path in paths:
        yield Failure(f"{path} nothing", partial(ask, path=path, expected="nothing", model="nothing"))
        yield Failure(f"{path} raises", partial(ask, path=path, expected="", model="text_raises"))
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        yield Failure(f"{path} exits", partial(ask, path=path, expected="", model="text_exits"))
        for model in ("answers_error", "sends_error_later", "sends_then_raises"):
            yield Failure(
                f"{path} stream {model}",
                partial(ask, path=path, expected="no luck", model=f"text_{model}", stream=True),
            )
        yield Failure(f"{path} stream disconnect", partial(text_disconnect, path=path, document=paths[path]))
    yield Failure(
        "chat with a bad field",
        lambda s: openai(s, "/v1/chat/completions", "", model="text_raises", messages=_user(), n="many"),
    )
    yield Failure(
        "two prompts, of which one fails",
        lambda s: openai(s, "/v1/completions", "", model="text_raises", prompt=[words(), "more"], max_tokens=5),
    )
    yield Failure("mcp too long", lambda s: openai(s, "/mcp", "the message has", **_tool("text_raises", words())))


def _user() -> list[dict[str, str]]:
    return [{"role": "user", "content": words()}]


def text_disconnect(server: ServerProcess, path: str, document: Callable[[], dict[str, Any]]) -> None:
    """A client that disconnects from a stream of text after the model has begun."""
    port: int = server.openai_port  # type: ignore[attr-defined]
    body = json.dumps({"model": "text_sends_waits", "stream": True, **document()}).encode()
    http_disconnect(server, path, body, {"Content-Type": "application/json"}, port=port)


def _tool(model: str, text: str) -> dict[str, Any]:
    arguments = {"name": model, "arguments": {"text_input": text}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments}


def mcp_many(server: ServerProcess, model: str) -> None:
    """As many bytes as the other requests, in as many calls of a tool as they take."""
    for _ in range(SIZE // 100_000):
        openai(server, "/mcp", "no luck", **_tool(model, "x" * 100_000))


def _of_mcp() -> Iterator[Failure]:
    for model in ("raises", "answers_error", "sends_error_later"):
        yield Failure(f"mcp {model}", partial(mcp_many, model=f"text_{model}"))


def failures_of_loads() -> list[Failure]:
    """Requests to a model that is loaded on demand, and cannot be."""
    make = partial(_message, "not_loaded")
    return [
        Failure("http not_loaded", partial(http_infer, model="not_loaded", expected="not_loaded")),
        Failure("grpc not_loaded", partial(grpc_infer, message=make, expected="not_loaded")),
        Failure("stream not_loaded", partial(grpc_stream, message=make, expected="not_loaded")),
    ]


FAILURES: dict[str, Callable[[], Iterator[Failure]]] = {
    "http": _of_http,
    "grpc": _of_grpc,
    "generate": _of_text,
    "openai": _of_openai,
    "mcp": _of_mcp,
}
"""Every kind of failure, by frontend."""

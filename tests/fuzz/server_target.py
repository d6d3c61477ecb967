"""A real server with guests, over sockets. It gets the inputs of the other targets, fewer of them."""

from __future__ import annotations

import http.client
import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from fuzz.grpc_target import SERVICE
from fuzz.samples import request
from support.console import shown_models
from support.server import HOST, ServerProcess

from naiad.frontends.http1.messages import INTERNAL_ERROR

_FP32 = 'name: "{}" data_type: TYPE_FP32 dims: [ {} ]'
_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
"""
_TENSOR = "        return pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', {})])\n"
_ADD = _TENSOR.format("sum(tensor.as_numpy() for tensor in request.inputs())")
_SAME = _TENSOR.format("request.inputs()[0].as_numpy()")
_REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for index in range(int(min(max(request.inputs()[0].as_numpy()[0], 0), 3))):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([index]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_PAIR = f"""max_batch_size: 8 dynamic_batching {{ }}
input [ {{ {_FP32.format("INPUT0", 4)} }}, {{ {_FP32.format("INPUT1", 4)} }} ] output [ {{ {_FP32.format("OUTPUT0", 4)} }} ]"""
_ONE = f"input [ {{ {_FP32.format('INPUT0', -1)} }} ] output [ {{ {_FP32.format('OUTPUT0', -1)} }} ]"
_MODELS = {
    "add_sub": (_PAIR, _CODE + _ADD),
    "add_one": (_PAIR, _CODE + _ADD),
    "identity": (_ONE, _CODE + _SAME),
    "later": (_ONE, _CODE + _SAME),
    "words": (_ONE.replace("FP32", "STRING"), _CODE + _SAME),
    "failing": (_ONE, _CODE + "        raise ValueError('no luck')\n"),
    "repeat": (
        _ONE.replace("FP32", "INT32", 1).replace("INPUT0", "IN").replace("OUTPUT0", "OUT").replace("-1", "1")
        + "model_transaction_policy { decoupled: true }",
        _CODE.partition("class")[0] + _REPEAT,
    ),
}
_SPARE = "add_one"
_KEPT = [name for name in _MODELS if name != _SPARE]
_UNEXPECTED = re.compile(
    r": unexpected error|cannot answer|cannot write|exception was never|Unexpected <class|Task exception|panicked"
)


class ServerTarget:
    """Sends the inputs of the other targets to a server.

    Attributes:
        outcomes: How often responses had each status.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.outcomes: Counter[Any] = Counter()
        self._server = server
        self._channel = grpc.insecure_channel(server.grpc_url)

    def close(self) -> None:
        """Close the gRPC channel."""
        self._channel.close()

    def try_bytes(self, data: bytes, cuts: list[int]) -> None:
        """Send bytes, then close the sending side. The server must close the connection."""
        # Loads and unloads go to a model that no other input uses.
        data = data.replace(b"repository/models/add_sub", b"repository/models/add_one")
        with socket.create_connection((HOST, self._server.http_port), timeout=20) as connection:
            try:
                cut = cuts[0] % (len(data) + 1) if cuts else 0
                connection.sendall(data[:cut])
                connection.sendall(data[cut:])
                connection.shutdown(socket.SHUT_WR)
                answer = connection.makefile("rb").read()
            except TimeoutError:
                raise
            except OSError:
                answer = b""  # rejected before all of it was sent
        assert INTERNAL_ERROR.encode() not in answer
        self.outcomes["responded" if answer else "closed"] += 1

    def try_body(self, line: str, body: bytes) -> None:
        """Send a complete request; it must get a response."""
        line = line.replace("repository/models/add_sub", f"repository/models/{_SPARE}")
        with socket.create_connection((HOST, self._server.http_port), timeout=60) as connection:
            connection.sendall(request(line, body))
            response = http.client.HTTPResponse(connection)
            response.begin()
            text = response.read()
        assert INTERNAL_ERROR.encode() not in text
        self.outcomes[response.status] += 1

    def try_call(self, method: str, data: bytes) -> None:
        """Call a method. It must not end with UNKNOWN or a timeout."""
        if method.startswith("Repository"):
            data = data.replace(b"add_sub", _SPARE.encode())
        call = self._channel.unary_unary(f"/{SERVICE}/{method}")
        try:
            call(data, timeout=60)
        except grpc.RpcError as problem:
            code, details = problem.code(), problem.details()
        else:
            code, details = grpc.StatusCode.OK, "fine"
        assert details, f"{code} without a text"
        assert code not in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}, details
        self.outcomes[code.name] += 1

    def try_stream(self, messages: Sequence[bytes]) -> None:
        """Send messages on a stream; it must end without an error, whatever they are."""
        count = sum(1 for _ in self._channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(iter(messages), timeout=60))
        self.outcomes["streamed"] += count

    def check_health(self) -> None:
        """Check that the server is live, no guest was restarted and the log has no unexpected errors."""
        restarts = {model["name"]: model["restarts"] for model in shown_models(self._server)}
        assert set(restarts) >= set(_KEPT), restarts
        assert not any(restarts.values()), restarts
        assert self._server.get("/v2/health/live").status == 200
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [5]}]}
        assert self._server.post("/v2/models/identity/infer", body).json()["outputs"][0]["data"] == [5]
        found = [line for line in self._server.log.splitlines() if _UNEXPECTED.search(line)]
        assert not found, found[:5]


@contextmanager
def running_server(folder: Path) -> Iterator[ServerTarget]:
    """A server with the models that the samples name."""
    for name, (config, code) in _MODELS.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(f'name: "{name}" backend: "python" {config}')
        (folder / "models" / name / "1" / "model.py").write_text(code)
    options = ["--model-control-mode=explicit", "--load-model=*", "--ui=true", "--allow-client-shm=true"]
    with ServerProcess(folder / "models", *options, work=folder, timeout=90) as server:
        target = ServerTarget(server)
        try:
            yield target
        finally:
            target.close()

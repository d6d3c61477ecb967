"""HTTP requests with binary tensors, by the standard library: the machine with the GPU may have no client package."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

HOST = "127.0.0.1"


class RequestError(Exception):
    """The server answered with an error."""


class Connection:
    """A connection to one server."""

    def __init__(self, port: int, timeout: float) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=timeout)

    def __enter__(self) -> Connection:  # noqa: PYI034 - typing has Self since Python 3.11 only
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[Any, bytes]:
        """The headers and the body of the answer.

        Raises:
            RequestError: If it is an error.
        """
        try:
            self._connection.request("POST", path, body, dict(headers or {}))
            response = self._connection.getresponse()
            content = response.read()
        except BaseException:
            self._connection.close()  # opened again by the next request
            raise
        if response.status != http.HTTPStatus.OK:
            raise RequestError(f"{path}: {response.status} {content.decode(errors='replace')[:600]}")
        return response.headers, content

    def get(self, path: str) -> Any:
        """The document at a path."""
        try:
            self._connection.request("GET", path)
            response = self._connection.getresponse()
            content = response.read()
        except BaseException:
            self._connection.close()  # opened again by the next request
            raise
        if response.status != http.HTTPStatus.OK:
            raise RequestError(f"{path}: {response.status} {content.decode(errors='replace')[:600]}")
        return json.loads(content)

    def infer(self, model: str, array: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """The output OUT of a model for the input IN."""
        described = {
            "name": "IN",
            "datatype": "FP32",
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        outputs = [{"name": "OUT", "parameters": {"binary_data": True}}]
        document = {"inputs": [described], "outputs": outputs, "parameters": dict(parameters or {})}
        head = json.dumps(document).encode()
        headers, body = self.post(
            f"/v2/models/{model}/infer",
            head + array.tobytes(),
            {"Inference-Header-Content-Length": str(len(head))},
        )
        start = int(headers["Inference-Header-Content-Length"])
        return np.frombuffer(body[start:], np.float32)

    def probe(self, guest: str, function: str, /, **arguments: Any) -> Any:
        """What a function of `probes` returns in the guest of the model *guest*.

        Raises:
            RequestError: With its traceback, if it raises.
        """
        call = json.dumps({"function": function, "arguments": arguments})
        document = {"inputs": [{"name": "CALL", "datatype": "BYTES", "shape": [1], "data": [call]}]}
        _, body = self.post(f"/v2/models/{guest}/infer", json.dumps(document).encode())
        answer = json.loads(json.loads(body)["outputs"][0]["data"][0])
        if "error" in answer:
            raise RequestError(answer["error"].strip())
        return answer["result"]


def median(times: Sequence[float]) -> float:
    """The middle one."""
    return sorted(times)[len(times) // 2]

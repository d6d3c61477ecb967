"""A plain socket that sends given bytes and reads whole responses."""

from __future__ import annotations

import http.client
import json
import socket
from typing import NamedTuple


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self):
        return json.loads(self.body)


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.incoming = self.socket.makefile("rb")

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.socket.sendall(part)

    def read(self, *, with_body: bool = True) -> Answer:
        """The next response; without a body if the request was a HEAD."""
        status, headers, _ = self.read_head()
        length = int(headers.get("Content-Length", "0")) if with_body else 0
        return Answer(status, headers, self.incoming.read(length))

    def read_head(self) -> Answer:
        """Status and headers of the next response. The test reads the body itself."""
        line = self.incoming.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        return Answer(int(line.split()[1]), http.client.parse_headers(self.incoming), b"")

    def read_chunk(self) -> bytes:
        """The next chunk of a body; empty at its end."""
        size = int(self.incoming.readline(), 16)
        chunk = self.incoming.read(size)
        assert self.incoming.readline() == b"\r\n"
        return chunk

    def read_chunks(self) -> list[bytes]:
        """The chunks of a body up to its end."""
        return list(iter(self.read_chunk, b""))

    def is_ended_by_server(self) -> bool:
        try:
            return self.incoming.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.incoming.close()
        self.socket.close()


def request(path: str, body: bytes = b"", *headers: str, method: str = "POST", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(path: str, body: bytes, size: int, *headers: str) -> bytes:
    """A request with its body in chunks of *size* bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", *headers, "", ""]
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return "\r\n".join(lines).encode() + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in [*chunks, b""])


def infer(*values: float, request_id: str = "", binary: bool = False) -> bytes:
    document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": list(values)}]}
    if request_id:
        document["id"] = request_id
    if binary:
        document["parameters"] = {"binary_data_output": True}
    return json.dumps(document).encode()


def raw(model: str, body: bytes) -> bytes:
    """A raw inference request: its body is the only tensor."""
    return request(f"/v2/models/{model}/infer", body, "Inference-Header-Content-Length: 0")

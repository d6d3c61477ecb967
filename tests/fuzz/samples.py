"""Valid requests over HTTP: at least one for each endpoint."""

from __future__ import annotations

import gzip
import json
import os
import struct
import zlib
from typing import Any

KEY = f"/naiad-fuzz-{os.getpid()}"
"""A region of shared memory for this process."""

_FOUR = [1.0, 2.0, 3.0, 4.0]


def _pair(**parameters: Any) -> dict[str, Any]:
    return {
        "id": "a",
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [1, 4], **(parameters or {"data": _FOUR})}
            for name in ("INPUT0", "INPUT1")
        ],
    }


_REPEAT = {"id": "r", "IN": 2, "parameters": {"priority": 1}}
_CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stop": ["x"], "n": 1}
_COMPLETION = {
    "model": "chat",
    "prompt": ["one", "two"],
    "max_tokens": 3,
    "temperature": 0.5,
    "logprobs": 1,
    "echo": True,
}

DOCUMENTS: list[tuple[str, Any]] = [
    ("POST /v2/models/add_sub/infer", _pair()),
    (
        "POST /v2/models/add_sub/versions/1/infer",
        {
            **_pair(),
            "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}, {"name": "OUTPUT1", "parameters": {"binary_data": True}}],
            "parameters": {"sequence_id": 3, "sequence_start": True, "sequence_end": False, "priority": 1, "timeout": 5, "x": 1.5},
        },
    ),
    ("POST /v2/models/words/infer", {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]}]}),
    ("POST /v2/models/identity/infer", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [[1], [2]]}]}),
    ("POST /v2/models/later/infer", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [0], "data": []}]}),
    ("POST /v2/models/held/infer", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}),
    (
        "POST /v2/models/identity/infer",
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}}]},
    ),
    ("POST /v2/models/failing/infer", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}),
    ("POST /v2/models/repeat/generate_stream", _REPEAT),
    ("POST /v2/models/repeat/generate", {**_REPEAT, "IN": 1}),
    ("POST /v2/models/add_sub/generate", {"INPUT0": [1, 2, 3, 4], "INPUT1": [1.5, 2, 3, 4], "id": "g", "x": True}),
    ("POST /v2/models/words/generate_stream", {"INPUT0": ["a", "b"], "parameters": {"INPUT0": "c"}}),
    ("POST /v2/repository/index", {"ready": True}),
    ("POST /v2/repository/models/add_sub/load", {"parameters": {"config": "{}", "file:1/model.py": "eA=="}}),
    ("POST /v2/repository/models/add_sub/unload", {"parameters": {"unload_dependents": True}}),
    ("POST /v2/systemsharedmemory/region/r/register", {"key": KEY, "offset": 0, "byte_size": 64}),
    ("POST /v2/cudasharedmemory/region/r/register", {"raw_handle": {"b64": "eA=="}, "device_id": 0, "byte_size": 64}),
    ("POST /v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "10", "trace_count": "-1", "log_frequency": "0"}),
    ("POST /v2/models/add_sub/trace/setting", {"trace_level": None, "trace_rate": None}),
    ("POST /v2/logging", {"log_info": True, "log_verbose_level": 1, "log_format": "ISO8601"}),
    ("POST /v1/chat/completions", _CHAT),
    ("POST /v1/chat/completions", {**_CHAT, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True}),
    ("POST /v1/completions", _COMPLETION),
    ("POST /v1/completions", {**_COMPLETION, "stream": True}),
    ("POST /v1/embeddings", {"model": "chat", "input": ["a"], "encoding_format": "base64", "dimensions": 3}),
    ("POST /v1/models/chat/load", {}),
]  # fmt: skip

_GETS = [
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/add_sub", "/v2/models/add_sub/versions/1",
    "/v2/models/add_sub/versions/1/ready", "/v2/models/add_sub/config", "/v2/models/add_sub/stats", "/v2/models/stats",
    "/v2/trace/setting", "/v2/models/add_sub/trace/setting", "/v2/logging", "/v2/systemsharedmemory/status",
    "/v2/systemsharedmemory/region/r/status", "/v2/cudasharedmemory/status", "/v2/models/%61dd%5Fsub?x=1", "/v1/models",
    "/v1/models/chat", "/metrics", "http://host/v2",
]  # fmt: skip


def request(line: str, body: bytes, *headers: str) -> bytes:
    """A request with a Content-Length."""
    lines = [f"{line} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + body


def chunked(line: str, body: bytes, size: int, *headers: str) -> bytes:
    """A request with a chunked body."""
    lines = [f"{line} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", *headers, "", ""]
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return "\r\n".join(lines).encode() + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in [*pieces, b""])


def _binary() -> bytes:
    document = json.dumps(
        {**_pair(parameters={"binary_data_size": 16}), "parameters": {"binary_data_output": True}}
    ).encode()
    body = document + struct.pack("<8f", *range(8))
    return request("POST /v2/models/add_sub/infer", body, f"Inference-Header-Content-Length: {len(document)}")


def _all() -> list[bytes]:
    found = [request(line, json.dumps(document).encode()) for line, document in DOCUMENTS]
    infer = json.dumps(DOCUMENTS[0][1]).encode()
    found += [request(f"GET {path}", b"") for path in _GETS]
    found += [request("HEAD /v2", b""), request("OPTIONS /v2", b""), request("DELETE /v2/models/add_sub", b"")]
    found += [
        _binary(),
        _binary(),
        chunked("POST /v2/models/add_sub/infer", infer, 50),
        chunked("POST /v2/models/add_sub/infer", infer, 7, "Expect: 100-continue"),
        request("POST /v2/models/add_sub/infer", gzip.compress(infer), "Content-Encoding: gzip", "Accept-Encoding: gzip"),
        request("POST /v2/models/add_sub/infer", zlib.compress(infer), "Content-Encoding: deflate", "Accept-Encoding: deflate"),
        request("POST /v2/models/identity/infer", struct.pack("<3f", 1, 2, 3), "Inference-Header-Content-Length: 0"),
        request("POST /v2/models/words/infer", b"some text", "Inference-Header-Content-Length: 0"),
        request("POST /v2/models/repeat/generate_stream", json.dumps(_REPEAT).encode(), "endpoint-load-metrics-format: json"),
        request("POST /v2/systemsharedmemory/unregister", b""),
        request("POST /v2/systemsharedmemory/region/r/unregister", b""),
        request("POST /v2/cudasharedmemory/unregister", b""),
        request("POST /v2/repository/elsewhere/index", b""),
        b"GET /v2 HTTP/1.0\r\n\r\n",
    ]  # fmt: skip
    return found


REQUESTS: list[bytes] = _all()

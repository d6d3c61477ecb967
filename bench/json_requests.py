"""Requests in JSON, as curl, browsers and most first programs send them, with binary ones beside them.

They are sent by the generator of `bench.scaling`: perf_analyzer takes more CPU for a request than either server.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from bench.repository import LONG
from bench.scaling import load
from bench.scaling.load import Load, Request, infer_request
from bench.servers import Server

_INPUTS = ("INPUT0", "INPUT1")
_CHANGING = 500
_HEADERS = {"Content-Type": "application/json"}
_TEXTS = ["short", "a text of some words", 'a text with "quotes" and a line\n', "\u00fcml\u00e4uts"]


def _request(path: str, document: Mapping[str, Any]) -> Request:
    return Request(path, json.dumps(document, separators=(",", ":")).encode(), _HEADERS)


def _infer(model: str, values: Sequence[Sequence[Any]], datatype: str = "FP32", **members: str) -> Request:
    inputs = [
        {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}
        for name, data in zip(_INPUTS, values, strict=False)
    ]
    return _request(f"/v2/models/{model}/infer", {**members, "inputs": inputs})


def _changing() -> list[Request]:
    chosen = random.Random(0)
    return [
        _infer("add_sub", [[round(chosen.uniform(-100, 100), 3) for _ in range(16)] for _ in _INPUTS], id=f"{number}")
        for number in range(_CHANGING)
    ]


_SHORT = [_infer("add_sub", [[*range(16)], [1] * 16])]
LOADS: dict[str, Load] = {
    "json-http-1": Load(_SHORT, 1),
    "json-http-16": Load(_SHORT, 16),
    "json-changing-http-16": Load(_changing(), 16),
    f"json-{LONG}-http-16": Load([_infer(f"add_sub_{LONG}", [[*range(LONG)], [1] * LONG])], 16),
    "json-strings-http-16": Load([_infer("strings", [_TEXTS], "BYTES")], 16),
    "json-generate-http-16": Load([_request("/v2/models/text/generate", {"text_input": "What is a tensor?"})], 16),
    "binary-http-16": Load([infer_request("add_sub", _INPUTS, 16)], 16),
    f"binary-{LONG}-http-16": Load([infer_request(f"add_sub_{LONG}", _INPUTS, LONG)], 16),
}
"""Numbers are integers, except in the case of 500 requests with other values and other ids."""


def measure(server: Server, requests: Load, seconds: float) -> dict[str, float]:
    """Throughput (requests/s), latency and CPU per request (microseconds) under a load."""
    before = server.cpu_seconds()
    reading = load.measure(server.http_port, requests, seconds)
    used = [after - earlier for after, earlier in zip(server.cpu_seconds(), before, strict=True)]
    host, guest = (each / reading.requests * 1e6 for each in used)
    throughput = reading.requests / reading.seconds
    return {"throughput": throughput, "p50": reading.p50, "cpu": host + guest, "host_cpu": host, "guest_cpu": guest}

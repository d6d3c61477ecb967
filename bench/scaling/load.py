"""Loads of HTTP requests, and the generators that send them.

`wrk` (Debian's package of that name) is used where it is installed: it takes a few microseconds of CPU per request,
where perf_analyzer takes more than the server. Without it, `bench.scaling.client` sends the same requests from plain
sockets in Python; its own CPU then limits the rates on small machines, but not the server's CPU per request.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.scaling import client
from bench.servers import HOST

WRK = shutil.which("wrk") or ""
GENERATOR = "wrk" if WRK else "sockets in Python (install `wrk` for a light generator)"
_GRACE = 60
_DONE = "scaling-result"
_FLOAT = 4


@dataclasses.dataclass(frozen=True)
class Request:
    """An HTTP request to POST."""

    path: str
    body: bytes
    headers: dict[str, str]

    def encode(self) -> bytes:
        """The request as bytes."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + self.body


@dataclasses.dataclass(frozen=True)
class Load:
    """Concurrent clients that send these requests in turn, each over one connection, one at a time."""

    requests: Sequence[Request]
    clients: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a generator has measured: completed requests, the seconds they took, and latencies in microseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float


def infer_request(model: str, inputs: Sequence[str], *shape: int) -> Request:
    """A request with binary FP32 tensors of this shape, whose outputs are binary too."""
    size = math.prod(shape) * _FLOAT
    tensors = [
        {"name": name, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}} for name in inputs
    ]
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return Request(f"/v2/models/{model}/infer", head + bytes(size * len(inputs)), headers)


def measure(port: int, load: Load, seconds: float) -> Reading:
    """Send the load for *seconds*.

    Raises:
        SystemExit: If requests fail: figures of failed requests mean nothing.
    """
    reading = _wrk(port, load, seconds) if WRK else client_reading(port, load, seconds)
    if not reading.requests:
        raise SystemExit(f"no request of {load.requests[0].path} was completed within {seconds:g} s")
    return reading


def client_reading(port: int, load: Load, seconds: float) -> Reading:
    """The same by the client in Python."""
    try:
        latencies, took = client.send(HOST, port, [each.encode() for each in load.requests], load.clients, seconds)
    except client.FailedRequestError as error:
        raise SystemExit(f"cannot measure {load.requests[0].path}: {error}") from error
    ordered = sorted(latencies)
    p50, p99 = (ordered[len(ordered) * part // 100] * 1e6 if ordered else 0.0 for part in (50, 99))
    return Reading(len(ordered), took, p50, p99)


_WRK_SCRIPT = """\
local requests, turn = {{}}, 0
local function add(path, headers, file)
  local opened = io.open(file, "rb")
  requests[#requests + 1] = wrk.format("POST", path, headers, opened:read("*a"))
  opened:close()
end
function init(args)
  {adds}
end
function request()
  turn = turn % #requests + 1
  return requests[turn]
end
function done(summary, latency)
  local failed = summary.errors
  local sum = failed.connect + failed.read + failed.write + failed.status + failed.timeout
  local p50, p99 = latency:percentile(50), latency:percentile(99)
  io.write(string.format("{mark} %d %d %d %d %d\\n", sum, summary.requests, summary.duration, p50, p99))
end
"""


def wrk_script(bodies: Sequence[Path], load: Load) -> str:
    """The Lua script for wrk: the requests, and a line with the results."""
    adds = []
    for each, body in zip(load.requests, bodies, strict=True):
        headers = ", ".join(f"[{json.dumps(name)}] = {json.dumps(value)}" for name, value in each.headers.items())
        adds.append(f"add({json.dumps(each.path)}, {{ {headers} }}, {json.dumps(str(body))})")
    return _WRK_SCRIPT.format(adds="\n  ".join(adds), mark=_DONE)


def parse_wrk(output: str) -> tuple[Reading, int]:
    """The reading and the number of failed requests from wrk's output.

    Raises:
        ValueError: If the output has no result.
    """
    found = re.search(rf"^{_DONE} (\d+) (\d+) (\d+) (\d+) (\d+)$", output, re.MULTILINE)
    if found is None:
        raise ValueError(f"wrk has printed no result:\n{output[-2000:]}")
    failed, requests, duration, p50, p99 = map(int, found.groups())
    return Reading(requests, duration / 1e6, float(p50), float(p99)), failed


def _wrk(port: int, load: Load, seconds: float) -> Reading:
    threads = max(1, min(load.clients, (os.cpu_count() or 1) // 4))
    with tempfile.TemporaryDirectory(prefix="naiad-bench-") as folder:
        bodies = [Path(folder) / f"body-{number}" for number in range(len(load.requests))]
        for path, each in zip(bodies, load.requests, strict=True):
            path.write_bytes(each.body)
        script = Path(folder) / "load.lua"
        script.write_text(wrk_script(bodies, load))
        # wrk takes whole seconds.
        options = [f"-t{threads}", f"-c{load.clients}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
        command = [WRK, *options, "-s", str(script), f"http://{HOST}:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _GRACE, check=False)
    reading, failed = parse_wrk(done.stdout + done.stderr)
    if failed:
        raise SystemExit(f"{failed} of {reading.requests} requests of {load.requests[0].path} failed:\n{done.stdout}")
    return reading

"""The load of gRPC requests: `h2load` (Debian's package `nghttp2-client`), one call at a time on each connection."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import grpc

from bench.scaling.load import Reading, Request
from bench.servers import HOST

PROGRAM = shutil.which("h2load") or ""
_GRACE = 60
_PREFIX = 5  # bytes before a message (gRPC over HTTP2, "Length-Prefixed-Message")


def ask(port: int, request: Request) -> None:
    """Send the request once.

    Raises:
        grpc.RpcError: If it fails.
    """
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        channel.unary_unary(request.path)(request.body[_PREFIX:], timeout=30)


def measure(port: int, request: Request, clients: int, seconds: float) -> Reading:
    """Send the request for *seconds* over so many connections.

    Raises:
        SystemExit: If a request fails.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-bench-") as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(request.body)
        headers = [f"--header={name}: {value}" for name, value in request.headers.items()]
        options = [f"-c{clients}", "-m1", "-t1", f"-D{max(1, round(seconds))}", f"--data={body}", f"--log-file={log}"]
        command = [PROGRAM, *options, *headers, f"http://{HOST}:{port}{request.path}"]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _GRACE, check=False)
        took = time.monotonic() - began
        rows = parse(log.read_text()) if done.returncode == 0 else []
    if not rows or any(status != "200" for status, _ in rows):
        raise SystemExit(f"requests of {request.path} failed:\n{done.stdout}{done.stderr}")
    latencies = sorted(latency for _, latency in rows)
    return Reading(len(rows), took, statistics.median(latencies), latencies[len(latencies) * 99 // 100])


def parse(log: str) -> list[tuple[str, float]]:
    """Status and latency, in microseconds, of each request in h2load's log."""
    return [(status, float(took)) for _, status, took, *_ in (line.split("\t") for line in log.splitlines())]

"""Runs the real perf_analyzer against one server and reads its figures."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
import tempfile
from pathlib import Path

from bench.reference import Reference
from bench.servers import Server

# perf_analyzer measures windows until three of them agree. With this tolerance any three agree, so it always measures
# exactly three: both servers are measured for the same time, and other load on the machine costs accuracy, not minutes.
WINDOWS = 3
ANY_SPREAD = "9999"
TIMEOUT = 180
# perf_analyzer fails if a window contains no response, for example after the machine was paused. Retrying keeps the
# results of a run of half an hour.
ATTEMPTS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """The load of one case.

    Attributes:
        model: The model that gets the requests.
        protocol: "http" or "grpc".
        concurrency: Number of concurrent clients.
        stretch: Factor for the length of the windows, for slow responses.
        parts: Number of calls or responses of one request; the figures are those of one call or response.
        streams: Whether requests are sent over a stream, as decoupled models require.
    """

    model: str
    protocol: str
    concurrency: int
    stretch: float = 1.0
    parts: int = 1
    streams: bool = False


def measure(reference: Reference, server: Server, load: Load, window: float) -> dict[str, float]:
    """Throughput (requests/s), latencies and CPU per request (microseconds) under a load."""
    requests_before, cpu_before = server.inference_count(load.model), server.cpu_seconds()
    figures = _run(reference, server.address(load.protocol), load, window)
    requests = max(server.inference_count(load.model) - requests_before, 1) * load.parts
    figures = {
        name: figure * load.parts if name == "throughput" else figure / load.parts for name, figure in figures.items()
    }
    host, guest = (after - before for after, before in zip(server.cpu_seconds(), cpu_before, strict=True))
    return {**figures, "host_cpu": host / requests * 1e6, "guest_cpu": guest / requests * 1e6}


def parse(report: str) -> dict[str, float]:
    """The figures of a CSV report with one row of measurements."""
    rows = list(csv.DictReader(report.splitlines()))
    if len(rows) != 1:
        raise ValueError(f"expected one row of measurements from perf_analyzer, got {len(rows)}:\n{report}")
    return {
        "throughput": float(rows[0]["Inferences/Second"]),
        "p50": float(rows[0]["p50 latency"]),
        "p95": float(rows[0]["p95 latency"]),
    }


def _run(reference: Reference, address: str, load: Load, window: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.csv"
        command = [
            *reference.load_command(),
            *("-m", load.model, "-u", address, "-i", load.protocol),
            *("--concurrency-range", str(load.concurrency), "--input-data", "zero", "--percentile", "95"),
            *(("--streaming",) if load.streams else ()),
            *("-p", str(int(window * load.stretch * 1000)), "-r", str(WINDOWS), "-s", ANY_SPREAD, "-f", str(report)),
        ]
        environ = {**os.environ, **reference.load_environ()}
        for _ in range(ATTEMPTS):
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT, check=False)
            if done.returncode == 0 and report.exists():
                return parse(report.read_text())
            print(
                f"perf_analyzer failed at {address} on {load}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}", flush=True
            )
        raise SystemExit(f"perf_analyzer failed {ATTEMPTS} times")

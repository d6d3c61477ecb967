"""Requests of 10 MB that fail in every way, over every frontend of a server that never collects cycles.

A failed request is freed at once, by reference counts: an error that refers to the frames it has passed, and that one of
these refers to, keeps all of them with their tensors until Python's cyclic garbage collector runs, and that is rare.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from attacks.failing_models import write_failing_models
from attacks.failures import FAILURES, Failure, failures_of_loads
from attacks.uncollected_in_process import MODELS
from support.server import ServerProcess, free_ports
from support.waiting import until

pytestmark = pytest.mark.timeout(900)

_SCRIPT = Path(__file__).with_name("uncollected.py")
_IN_PROCESS = Path(__file__).with_name("uncollected_in_process.py")
_ROUNDS = 2
"""How often each request is sent while memory is measured, after one round that is not."""
_GROWN = 40 << 20
"""What the memory of all processes may grow by, in up to 200 requests of 10 MB."""
_IN_CYCLES = 1 << 20
OFTEN = {
    "http raises": ("raises",),
    "http exits": ("exits",),
    "http calls_raises": ("calls_raises", "raises"),
    "http ensemble_of_raises": ("ensemble_of_raises", "returns_all", "raises"),
    "http unknown input": ("answers",),
    "http json broken": ("raises",),
    "http half a body": ("returns_all",),
    "http too late": ("queues",),
    "http disconnect": ("waits",),
    "grpc raises": ("raises",),
    "grpc cancel": ("waits",),
    "stream raises": ("raises",),
    "stream sends_then_raises": ("sends_then_raises",),
    "generate raises": ("text_raises",),
    "generate_stream sends_then_raises": ("text_sends_then_raises",),
    "/v1/chat/completions raises": ("text_raises",),
    "/v1/completions stream sends_then_raises": ("text_sends_then_raises",),
}
"""One failure of each kind, with the models that it needs; all others are a matter of endurance."""


@contextmanager
def uncollected_server(work: Path, *options: str, only: Collection[str] = ()) -> Iterator[ServerProcess]:
    """A server of failing models, all of them or some, without a collector."""
    openai, unused = free_ports(2)
    command = (sys.executable, _SCRIPT, work / "report")
    options = (
        f"--openai-port={openai}",
        "--mcp",
        "--stub-restart-limit=100000",
        "--cache-config=local,size=10485760",
        *options,
    )
    server = ServerProcess(work / "models", *options, work=work, command=command, timeout=180)
    server.openai_port = openai  # type: ignore[attr-defined]
    once = {"model": "raises", "retries": "0", "breaker_failures": "0"}
    write_failing_models(
        work / "models",
        {
            "remote_http": {"url": f"http://{server.http_url}", **once},
            "remote_grpc": {"url": f"grpc://{server.grpc_url}", **once},
            "remote_down": {"url": f"http://127.0.0.1:{unused}", **once},
        },
        is_on_demand="--model-control-mode=demand" in options,
        only=only,
    )
    with server:
        yield server


def send_failing(server: ServerProcess, failures: list[Failure], rounds: int) -> None:
    for name, fail in failures:
        for _ in range(rounds):
            try:
                fail(server)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def reports(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """What a collection frees in each process of the server."""
    found = {}
    for path in server.work.glob("report*"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            parts = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        found[path.name] = json.loads(parts)
    return found


def resident(server: ServerProcess) -> int:
    """Memory of the server, its frontend processes and its guests that is not shared between them."""
    total = 0
    for process in server.processes():
        try:
            memory = process.memory_info()
        except psutil.NoSuchProcess:
            continue  # a guest that a request has ended
        total += memory.rss - memory.shared
    return total


def assert_flat(server: ServerProcess, failures: list[Failure], processes: int) -> None:
    """Nothing of the requests stays, neither in a cycle nor elsewhere."""
    send_failing(server, failures, 1)
    before = resident(server)
    send_failing(server, failures, _ROUNDS)
    try:
        until(lambda: resident(server) <= before + _GROWN, "the memory to be freed", timeout=240)
    finally:
        print(json.dumps({"before": before, "after": resident(server)}))
        assert_nothing_in_cycles(server, processes)


def assert_nothing_in_cycles(server: ServerProcess, processes: int) -> None:
    """A collection would free nothing of the requests, in any process."""
    found = reports(server)
    print(json.dumps(found, indent=1))
    assert len(found) == processes
    for name, report in found.items():
        assert report["bytes"] <= _IN_CYCLES, (name, report)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.endurance)])
def test_nothing_of_a_failed_request_waits_for_a_collection(tmp_path: Path, processes: int) -> None:
    chosen = [each for of in FAILURES.values() for each in of() if each.name in OFTEN]
    assert {each.name for each in chosen} == {*OFTEN}
    models = {name for names in OFTEN.values() for name in names}
    with uncollected_server(tmp_path, f"--processes={processes}", only=models) as server:
        send_failing(server, chosen, 1)
        assert_nothing_in_cycles(server, processes)


@pytest.mark.endurance
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("frontend", FAILURES)
def test_nothing_of_any_failed_request_waits_for_a_collection(tmp_path: Path, frontend: str, processes: int) -> None:
    with uncollected_server(tmp_path, f"--processes={processes}") as server:
        assert_flat(server, list(FAILURES[frontend]()), processes)


@pytest.mark.endurance
@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_of_a_traced_request_that_fails_waits_for_a_collection(tmp_path: Path, processes: int) -> None:
    ends = (" raises", " nothing", " ensemble_of_raises")
    failures = [each for of in ("http", "grpc", "generate") for each in FAILURES[of]() if each.name.endswith(ends)]
    options = ("rate=1", "level=TIMESTAMPS", "mode=triton", f"triton,file={tmp_path / 'traces'}")
    traced = [f"--trace-config={option}" for option in options]
    with uncollected_server(tmp_path, f"--processes={processes}", *traced) as server:
        assert_flat(server, failures, processes)


@pytest.mark.endurance
@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_of_a_request_waits_for_a_collection_if_its_model_cannot_be_loaded(
    tmp_path: Path, processes: int
) -> None:
    with uncollected_server(tmp_path, f"--processes={processes}", "--model-control-mode=demand") as server:
        assert_flat(server, failures_of_loads() * 3, processes)


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.endurance)])
def test_nothing_of_a_request_in_this_process_waits_for_a_collection(tmp_path: Path, rounds: int) -> None:
    models = write_failing_models(tmp_path / "models", {}, only=MODELS)
    ended = subprocess.run(
        [sys.executable, _IN_PROCESS, models, tmp_path / "store", str(rounds)],
        env={**os.environ, "PYTHONPATH": str(_IN_PROCESS.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    report = json.loads(ended.stdout.splitlines()[-1])
    print(report)
    assert report["failed"] >= 30
    assert report["bytes"] <= _IN_CYCLES, report
    assert report["grown"] <= _GROWN, report

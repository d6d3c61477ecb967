"""`python -m bench.others`: its requests, its section of the page, and servers that do not start."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.waiting import until
from tritonclient.grpc import InferenceServerClient, InferInput

from bench.others import __main__ as others
from bench.others import grpc_load
from bench.others.contestants import (
    ADD_SUB,
    BINARY,
    CONTESTANTS,
    FOREST,
    GRPC,
    IN_JSON,
    JOBS,
    NETWORK,
    PROGRAMS,
    SUMS,
    Contestant,
    Place,
)
from bench.results import Results
from bench.scaling.load import Request
from bench.servers import free_ports
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest

OPTIONS = argparse.Namespace(rounds=3, seconds=5.0, jobs=[ADD_SUB])


def contestant(*command: str) -> Contestant:
    return Contestant(
        "Other", (), "other", "one worker", lambda job, place: command, lambda job: Request(f"/{job}", b"{}", {})
    )


@pytest.mark.parametrize("each", CONTESTANTS, ids=lambda each: each.name)
def test_each_server_is_asked_for_its_jobs(each):
    for job in each.jobs:
        request = each.request(job)
        if job == GRPC:
            (size,) = struct.unpack_from(">L", request.body, 1)
            message = ModelInferRequest.FromString(request.body[5:])
            assert (len(request.body), message.model_name) == (5 + size, ADD_SUB)
            assert [len(each) for each in message.raw_input_contents] == [4 * SUMS[job]] * 2
            continue
        assert ({ADD_SUB} if job in SUMS else {job, "rows"}) & set(request.path.split("/"))
        if job in (*IN_JSON, FOREST, NETWORK):
            assert json.loads(request.body)
        else:
            head = int(request.headers["Inference-Header-Content-Length"])
            assert len(json.loads(request.body[:head])["inputs"]) == 2
            assert len(request.body) - head == 2 * 4 * SUMS[job]


def test_naiad_does_every_job_and_each_sum_has_its_ratios_to_the_floor_and_triton():
    ours, floor, triton = CONTESTANTS[:3]
    assert tuple(ours.jobs) == JOBS
    results = Results()
    for each, cpu in ((ours, 300.0), (floor, 200.0), (triton, 600.0)):
        results.add("binary, 1 client", each.name, {"requests/s": 1.0, "p50": 1.0, "cpu": cpu})
    options = argparse.Namespace(rounds=3, seconds=5.0, jobs=[BINARY])
    made = others.section(
        [ours, floor, triton], dict.fromkeys((ours.name, floor.name, triton.name), ""), results, options
    )
    assert "| naiad / floor |  | 1.00 x | 1.00 x | 1.50 x | - | - | - |" in made
    assert "| naiad / triton |  | 1.00 x | 1.00 x | 0.50 x | - | - | - |" in made


def test_the_section_has_a_row_for_each_server_and_dashes_for_what_was_not_measured():
    results = Results()
    results.add("add_sub, 1 client", "Other", {"requests/s": 1234.5, "p50": 810.0, "cpu": 500.0})
    made = others.section([contestant()], {"Other": "1.2"}, results, OPTIONS)
    assert "| Other 1.2 | one worker | 1,234 | 0.81 ms | 500 | - | - | - |" in made
    assert made.startswith(others.OTHERS_BEGIN)
    assert made.endswith(others.OTHERS_END)


def test_a_server_that_exits_is_an_error_with_the_folder_of_the_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(others, "FOLDER", tmp_path)
    broken = contestant(sys.executable, "-c", "raise SystemExit('no such module')")
    place = Place(Path(sys.executable), tmp_path / "forest", tmp_path, 1)
    with (
        others._running(broken, ADD_SUB, place) as process,
        pytest.raises(SystemExit, match=r"no answer to /add_sub: .* logs"),
    ):
        others._wait_for_answer(partial(others._ask, 1, broken.request(ADD_SUB)), broken.request(ADD_SUB), process)
    assert "no such module" in (tmp_path / "Other.log").read_text()


def test_without_h2load_nothing_is_measured_in_vain(monkeypatch):
    monkeypatch.setattr(grpc_load, "PROGRAM", "")
    monkeypatch.setattr(sys, "argv", ["bench.others"])
    with pytest.raises(SystemExit, match=r"install h2load .*nghttp2-client.*or name other --jobs"):
        others.main()


def test_the_log_of_h2load_has_status_and_latency_of_each_request():
    assert grpc_load.parse("1764512345\t200\t153\n1764512346\t503\t90\n") == [("200", 153.0), ("503", 90.0)]


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def floor(request):
    """The floor, which listens at the port that the fixture returns."""
    (port,) = free_ports(1)
    program = [sys.executable, str(PROGRAMS / "floor.py"), str(port), *request.param]
    with subprocess.Popen(program, start_new_session=True) as process:
        try:
            until(lambda: listens(port), "the floor to listen")
            yield port
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.server
@pytest.mark.parametrize("floor", [["grpc"]], indirect=True)
def test_the_floor_answers_calls_of_grpc(floor):
    with InferenceServerClient(f"127.0.0.1:{floor}") as client:
        for size in (16, 100_000):
            a, b = np.arange(size, dtype=np.float32), np.full(size, 2, np.float32)
            inputs = [InferInput(name, [size], "FP32") for name in ("INPUT0", "INPUT1")]
            for each, value in zip(inputs, (a, b), strict=True):
                each.set_data_from_numpy(value)
            answer = client.infer("add_sub", inputs)
            assert np.array_equal(answer.as_numpy("OUTPUT0"), a + b)
            assert np.array_equal(answer.as_numpy("OUTPUT1"), a - b)

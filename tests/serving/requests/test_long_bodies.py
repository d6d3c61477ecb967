"""Tensors that are read from their socket straight into a guest's memory, which others come to at the same time."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
from serving.bls.test_long_tensors import DOUBLES
from serving.written import write_model
from support.client_inputs import input_of
from support.server import HOST, ServerProcess
from support.waiting import until

CONFIG = """
input [{{ name: "IN" data_type: TYPE_FP32 dims: [-1] }}]
output [{{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }}]
instance_group [{{ count: {count} kind: KIND_CPU }}]
"""
SIZES = (3, 5_000, 40_000, 100_000, 700_000)


def ask(connection: http.client.HTTPConnection, value: float, size: int) -> tuple[int, object]:
    """The status, and what was answered to *size* elements of *value*: their value if all have the same."""
    data = np.full(size, value, np.float32).tobytes()
    tensor = {"name": "IN", "datatype": "FP32", "shape": [size], "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    connection.request("POST", "/v2/models/doubles/infer", text + data, headers)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        return response.status, json.loads(answer)["error"]
    values = np.frombuffer(answer[int(response.headers["Inference-Header-Content-Length"]) :], np.float32)
    return len(values), float(values[0]) if (values == values[0]).all() else "a mixture"


def talk(server: ServerProcess, seed: int, count: int, sizes: Sequence[int] = SIZES) -> list[str]:
    """Ask *count* times on one connection; what was wrong."""
    choose, wrong = random.Random(seed), []
    with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=60)) as connection:
        for number in range(count):
            value, size = float(seed * 1000 + number), choose.choice(sizes)
            answer = ask(connection, value, size)
            if answer != (size, 2 * value):
                wrong.append(f"{size} of {value}: {answer}")
    return wrong


def held(server: ServerProcess) -> int:
    """Bytes of input segments in use."""
    return int(sum(server.samples("naiad_input_segment_used_bytes{").values()))


def doubles(tmp_path, count: int, *options: str) -> ServerProcess:
    file = write_model(tmp_path / "models", "doubles", DOUBLES)
    (file.parents[1] / "config.pbtxt").write_text('backend: "python"' + CONFIG.format(count=count))
    return ServerProcess(tmp_path / "models", *options, work=tmp_path)


def empty_handed(server: ServerProcess) -> bool:
    """Have the instances let go of what they kept, several at a time so that each gets some, and see whether they did."""
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda seed: talk(server, seed, 20, sizes=(3,)), range(4))) == [[]] * 4
    return held(server) == 0


def talk_grpc(server: ServerProcess, seed: int, count: int, sizes: Sequence[int] = SIZES) -> list[str]:
    """The same over gRPC."""
    choose, wrong = random.Random(seed), []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        for number in range(count):
            value, size = float(seed * 1000 + number), choose.choice(sizes)
            given = input_of(tritonclient.grpc, "IN", np.full(size, value, np.float32))
            answer = client.infer("doubles", [given], client_timeout=60).as_numpy("OUT")
            if answer.shape != (size,) or not (answer == 2 * value).all():
                wrong.append(f"{size} of {value}: {answer}")
    return wrong


@pytest.mark.parametrize("count", [1, 2])
def test_what_clients_of_both_protocols_send_at_the_same_time_never_mixes(tmp_path, count):
    with doubles(tmp_path, count) as server, ThreadPoolExecutor(8) as pool:
        talks = [pool.submit(talk_grpc if seed % 4 else talk, server, seed, 30) for seed in range(1, 9)]
        assert [each.result() for each in talks] == [[]] * 8
        until(lambda: empty_handed(server), "all blocks of the input segment to be free")


@pytest.mark.parametrize("count", [1, 2])
def test_what_clients_send_at_the_same_time_never_mixes(tmp_path, count):
    with doubles(tmp_path, count) as server, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda seed: talk(server, seed, 40), range(1, 9))) == [[]] * 8
        until(lambda: empty_handed(server), "all blocks of the input segment to be free")


def test_a_guest_that_dies_fails_its_own_request_and_others_are_read_again(tmp_path):
    with doubles(tmp_path, 1) as server, ThreadPoolExecutor(6) as pool:
        others = [pool.submit(talk, server, seed, 60) for seed in range(1, 6)]
        with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=60)) as connection:
            for _ in range(2):
                status, error = ask(connection, -1, 700_000)
                assert status == 500
                assert "exit" in error, error
                assert ask(connection, 5, 700_000) == (700_000, 10)
        assert [other.result() for other in others] == [[]] * 5
        until(lambda: empty_handed(server), "all blocks of the input segment to be free")


def test_request_that_needs_nearly_all_of_the_memory_for_requests_is_answered(tmp_path):
    """Reading stops at 7/8 of that memory, but not for a request that nothing else can make room for."""
    memory = 16 << 20
    # In one process: several would have a share of the memory each, which is smaller than these requests.
    with doubles(tmp_path, 1, f"--memory-limit-requests={memory}", "--processes=1") as server:
        with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=60)) as connection:
            for spare in (2048, memory // 9):
                size = (memory - spare) // 4
                assert ask(connection, 3, size) == (size, 6)
                assert talk(server, 1, 5) == []
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            for spare in (2048, memory // 9):
                given = input_of(tritonclient.grpc, "IN", np.ones((memory - spare) // 4, np.float32))
                assert client.infer("doubles", [given]).as_numpy("OUT")[-1] == 2

"""Clients that have the tensors of large requests traced, into a file or into a pipe that nobody reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from attacks.conftest import warm_up
from attacks.watching import attacked_server, harmless
from support.server import ServerProcess
from support.waiting import until

_GROWTH = 400 << 20
"""64 MiB of traces, and what the same requests take without them: bodies, and the segments of three instances."""
_SIZES = [7_999_999, 8_999_999, 2_599_999]
"""Bytes of the text of a tensor of each request of a round; the first request of all has tensors too long for that."""


@pytest.fixture
def traced(repository: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that may write traces; its clients decide what is traced."""
    with attacked_server(repository, f"--trace-config=triton,file={tmp_path}/traces", work=tmp_path) as started:
        warm_up(started)
        assert started.post("/v2/trace/setting", {"trace_level": ["TENSORS"], "trace_rate": "1"}).status == 200
        yield started


def infer(server: ServerProcess, model: str, datatype: str, array: np.ndarray) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=240) as client:
        given = tritonclient.http.InferInput("INPUT0", list(array.shape), datatype)
        given.set_data_from_numpy(array)
        returned = client.infer(model, [given]).as_numpy("OUTPUT0")
    assert returned.shape == array.shape


def attack(server: ServerProcess, rounds: int) -> None:
    infer(server, "bytes", "UINT8", np.zeros(20_000_000, np.uint8))
    for _ in range(rounds):
        infer(server, "bytes", "UINT8", np.zeros(4_000_000, np.uint8))
        infer(server, "identity", "FP32", np.ones(1_000_000, np.float32) / 3)
        infer(server, "words", "BYTES", np.full(200_000, b"a" * 10, object))


def test_tensors_of_large_requests_are_traced_beside_others(traced: ServerProcess, tmp_path: Path) -> None:
    with harmless(traced, _GROWTH):
        attack(traced, 1)
        # Fewer than a batch: they are written since they are large. At its end a server does not wait as long for that as a
        # busy machine needs.
        until(lambda: size_of(tmp_path / "traces") > 2 * sum(_SIZES), "the traces to be written", timeout=240)
    traced.stop()
    events = json.loads((tmp_path / "traces").read_text())
    sizes = [len(event["tensor"]["data"]) for event in events if event.get("activity") == "TENSOR_QUEUE_INPUT"]
    assert sizes == [0, *_SIZES]


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.endurance
def test_server_whose_trace_file_is_not_read_serves_and_ends(traced: ServerProcess, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "traces")
    with harmless(traced, _GROWTH):
        for _ in range(3):
            attack(traced, 3)
    assert "traces are dropped until it is written" in traced.log
    assert traced.stop() == 0
    assert "cannot write the last traces to" in traced.log

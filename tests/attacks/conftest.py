"""The server that attacks are made on: one for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.watching import attacked_server
from support.server import ServerProcess

CODE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
CONFIG = """
backend: "python"
input [ {{ name: "INPUT0" data_type: {0} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: {0} dims: [ -1 ] }} ]
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give attacks the time that seconds of work take on a busy machine."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that return their input: `identity` of FP32, `bytes` of UINT8, `words` of BYTES."""
    root = tmp_path_factory.mktemp("attacked")
    for name, datatype in (("identity", "TYPE_FP32"), ("bytes", "TYPE_UINT8"), ("words", "TYPE_STRING")):
        folder = root / name / "1"
        folder.mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(CONFIG.format(datatype))
        (folder / "model.py").write_text(CODE)
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with default settings. Attacks may not change what it serves."""
    with attacked_server(repository, work=tmp_path_factory.mktemp("server")) as started:
        warm_up(started)
        yield started


def warm_up(server: ServerProcess) -> None:
    """Let a server import what it imports at the first request: that is no attack.

    The kernel chooses a frontend process for each connection: each of two gets one of 16 nearly always.
    """
    document = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    for _ in range(16 if server.others() else 2):
        assert server.post("/v2/models/words/infer", document).status == 200
        assert server.get("/v2/health/live").status == 200

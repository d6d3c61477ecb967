"""The server that attacks are made on: one for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.watching import attacked_server
from support.model_files import python_config, write_files
from support.server import ServerProcess

CODE = """
def respond(self, request):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give attacks the time that seconds of work take on a busy machine."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that return their input: `identity` of FP32, `bytes` of UINT8, `words` of BYTES."""
    root = tmp_path_factory.mktemp("attacked")
    for name, datatype in (("identity", "FP32"), ("bytes", "UINT8"), ("words", "STRING")):
        write_files(root, name, python_config(f"INPUT0 {datatype} -1", f"OUTPUT0 {datatype} -1"), CODE)
    return root


@pytest.fixture(scope="module")
def server(repository: Path, work: Path) -> Iterator[ServerProcess]:
    """A server with default settings. Attacks may not change what it serves."""
    with attacked_server(repository, work=work) as started:
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

"""Models that failed to load, or were unloaded, and that no repository has: they leave the index and the memory."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest
from serving.repositories import repository
from support.server import ServerProcess

_CONFIG = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
}
_FAILS = b"class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no luck')\n"
_LOADS = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
EXPLICIT = "--model-control-mode=explicit"


def load_files(server: ServerProcess, name: str, code: bytes) -> int:
    """Load a model whose files the client sends; the status."""
    files = {"config": json.dumps(_CONFIG), "file:1/model.py": base64.b64encode(code).decode()}
    return server.post(f"/v2/repository/models/{name}/load", {"parameters": files}).status


def listed(server: ServerProcess) -> dict[str, str]:
    """The states of the models in the index."""
    return {entry["name"]: entry.get("state", "") for entry in server.post("/v2/repository/index", {}).json()}


@pytest.fixture
def server(tmp_path: Path):
    models = repository(tmp_path / "models", ["identity", "raises_in_initialize", "repeats"])
    with ServerProcess(models, EXPLICIT, work=tmp_path) as started:
        yield started


def test_a_failed_load_of_a_new_name_is_forgotten(server):
    """6,000 of them made an index of as many entries, and a server that was never ready again."""
    for number in range(3):
        assert load_files(server, f"new{number}", _FAILS) == 400

    assert set(listed(server)) == {"identity", "raises_in_initialize", "repeats"}
    assert server.get("/v2/health/ready").status == 200
    reply = server.get("/v2/models/new0")
    assert reply.error == "Request for unknown model: 'new0' is not found"


def test_a_failed_load_of_a_model_in_the_repository_stays_until_its_folder_is_removed(tmp_path, server):
    assert server.post("/v2/repository/models/raises_in_initialize/load").status == 400
    assert listed(server)["raises_in_initialize"] == "UNAVAILABLE"
    assert server.get("/v2/health/ready").status == 400

    shutil.rmtree(tmp_path / "models" / "raises_in_initialize")

    assert set(listed(server)) == {"identity", "repeats"}
    assert server.get("/v2/health/ready").status == 200


def test_a_model_that_is_loaded_stays_in_the_index_without_its_folder_until_it_is_unloaded(tmp_path, server):
    assert server.post("/v2/repository/models/identity/load").status == 200
    shutil.rmtree(tmp_path / "models" / "identity")
    assert load_files(server, "sent", _LOADS) == 200
    assert listed(server) == {"identity": "READY", "raises_in_initialize": "", "repeats": "", "sent": "READY"}

    for name in ("identity", "sent"):
        assert server.post(f"/v2/repository/models/{name}/unload").status == 200

    server.wait_for(lambda: set(listed(server)) == {"raises_in_initialize", "repeats"}, "both to be forgotten")

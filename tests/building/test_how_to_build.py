"""The page on building environments, followed literally; and what it makes, served by the reference where there is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from environments import makers
from support.server import ServerProcess

from naiad.environments.archives.manifest import read_manifest
from naiad_building.build import build
from naiad_building.pack import pack

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(600)]

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "build-an-environment.md"
_MODEL = """
import os, sys
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        told = [sys.prefix, np.__version__, os.environ.get("GREETING", "none")]
        answer = np.array([text.encode() for text in told], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", answer)]) for _ in requests]
"""
_CONFIG = """
backend: "python"
input [ { name: "ASKED" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 3 ] } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }
"""
_ASK = {"inputs": [{"name": "ASKED", "shape": [1], "datatype": "INT32", "data": [1]}]}


def _commands(*sections: str) -> list[str]:
    """The blocks of these sections that are commands for a shell."""
    parts = {part.partition("\n")[0]: part for part in _PAGE.read_text(encoding="utf-8").split("\n## ")}
    blocks = [block for name in sections for block in re.findall(r"```\n(.*?)```", parts[name], re.DOTALL)]
    return [block for block in blocks if block.startswith(("mkdir", "naiad"))]


def test_the_commands_of_the_page_do_what_the_page_says(tmp_path: Path) -> None:
    """Needs whatever index pip is configured for."""
    commands = _commands("From a recipe", "Without a network")
    assert len(commands) == 7

    environ = {
        **os.environ,
        "NAIAD_STORE": str(tmp_path / "store"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    printed = {}
    for command in commands:
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed[" ".join(command.split()[:2])] = done.stdout

    assert re.search(rf"^ *interpreter .*{tmp_path}/store/", printed["naiad explain"], re.MULTILINE)
    manifest = read_manifest(tmp_path / "models" / "tables.tar.zst")
    assert manifest is not None
    assert manifest.name == "tables"
    assert {"numpy", "orjson"} <= {package.name for package in manifest.packages}
    assert set(manifest.recipe) == {"env.toml", "requirements.txt", "pylock.toml"}
    assert (tmp_path / "build" / "tables-offline" / "bin" / "python").exists()


@pytest.mark.skipif(not os.environ.get("NAIAD_REFERENCE"), reason="NAIAD_REFERENCE names no tritonserver")
def test_the_reference_serves_what_is_packed_as_a_tar_gz(tmp_path: Path) -> None:
    """Its own stub is for Python 3.11 and for numpy 1."""
    if "3.11" not in makers.base_interpreters():
        pytest.skip("no Python 3.11 to build from")
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "requirements.txt").write_text("numpy==1.26.4\n")
    (recipe / "env.toml").write_text('name = "r"\nrequirements = "requirements.txt"\n[variables]\nGREETING = "it\'s"\n')
    packed = pack(build(recipe, tmp_path / "prefix", python="3.11").prefix, tmp_path / "r.tar.gz")
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(_MODEL)
    (model / "config.pbtxt").write_text(_CONFIG % packed.archive)

    for command in (os.environ["NAIAD_REFERENCE"], Path(sys.executable).with_name("tritonserver")):
        with ServerProcess(
            tmp_path / "models",
            work=tmp_path,
            command=[command],
            environ={"NAIAD_STORE": str(tmp_path / "store")},
            timeout=120,
        ) as server:
            reply = server.post("/v2/models/m/infer", _ASK)
        assert reply.status == 200, reply.body
        prefix, *told = reply.json()["outputs"][0]["data"]
        assert told == ["1.26.4", "it's"]
        assert not prefix.startswith(str(tmp_path / "prefix"))

"""`examples/gpu` as its README has it, with stand-ins for the driver and for the frameworks."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from examples.running import EXAMPLES, ROOT
from support.cuda import DEVICE_ARRAYS, StandInDriver
from support.server import ServerProcess

FRAMEWORKS = Path(__file__).with_name("stand_in_frameworks.py")
MODULES = {
    "torch.py": "from stand_in_frameworks import cuda, from_dlpack\n",
    "cupy.py": "from stand_in_frameworks import asarray, from_dlpack\n",
    "jax/__init__.py": "from stand_in_frameworks import device_put, devices\nfrom jax import dlpack, numpy\n",
    "jax/numpy.py": "from stand_in_frameworks import tanh\n",
    "jax/dlpack.py": "from stand_in_frameworks import from_dlpack\n",
}


def readme() -> tuple[list[str], list[str], str]:
    """The words of the two commands, and what the client prints."""
    text = (EXAMPLES / "gpu" / "README.md").read_text(encoding="utf-8")
    commands, output = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    server, client = map(shlex.split, commands.splitlines())
    return server, client, output


def with_stand_ins(models: Path) -> Path:
    """The example's models with the stand-ins for the frameworks beside their code."""
    shutil.copytree(EXAMPLES / "gpu" / "models", models)
    for version in models.glob("*/1"):
        shutil.copy(DEVICE_ARRAYS, version)
        shutil.copy(FRAMEWORKS, version)
        for name, text in MODULES.items():
            (version / name).parent.mkdir(exist_ok=True)
            (version / name).write_text(text)
    return models


def ask(server: ServerProcess) -> subprocess.CompletedProcess[str]:
    _, client, _ = readme()
    words = [server.http_url if word == "localhost:8000" else word for word in client[1:]]
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("torch", "jax", "cupy")), reason="a real framework would be used"
)
def test_the_chain_keeps_its_tensors_on_the_device_and_the_client_shows_it(tmp_path):
    command, _, output = readme()
    assert command[:3] == ["naiad", "--model-repository", "examples/gpu/models"]
    driver = StandInDriver(tmp_path / "cuda")

    with ServerProcess(with_stand_ins(tmp_path / "models"), work=tmp_path, environ=driver.environ) as server:
        asked = ask(server)
        large = [size for size in driver.bytes_of("cuMemcpyDtoD_v2") if size == 1 << 20]
        opened = driver.calls()["cuIpcOpenMemHandle_v2"]
        statistics = server.get("/v2/models/chain/stats").json()["model_stats"][0]

    assert (asked.returncode, asked.stdout, asked.stderr) == (0, output, "")
    assert statistics["inference_count"] == 3
    assert opened > 0
    assert len(large) >= 2 * 5, "each request but the first: three outputs and two inputs are copied on the device"
    assert (driver.allocations(), driver.opened(), driver.contexts()) == ([], [], [])


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("torch", "jax", "cupy")), reason="a real framework would be used"
)
def test_the_client_fails_where_tensors_go_through_the_cpu(tmp_path):
    driver = StandInDriver(tmp_path / "cuda")
    driver.fail("cuIpcGetMemHandle", 801)

    with ServerProcess(with_stand_ins(tmp_path / "models"), work=tmp_path, environ=driver.environ) as server:
        asked = ask(server)

    assert asked.returncode == 1, asked.stdout
    assert "the tensors between the models went through the CPU" in asked.stderr

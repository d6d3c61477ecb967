"""Rows about the machine and its limits: the doctor, several GPUs, users, the memory of guests, and the example."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.gpu.client import Connection

if TYPE_CHECKING:
    from bench.gpu.__main__ import Table

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gpu" / "models"
LARGE = 1 << 22
"""Bytes: the least that memory of the CPU is registered for."""
_STEPS = ("normalise", "squash", "weigh")
_DOCTOR = "import sys; from naiad.cli.main import main; sys.exit(main(['doctor', *sys.argv[1:]]))"
_COUNT = (
    "import ctypes; library, count = ctypes.CDLL('libcuda.so.1'), ctypes.c_int(); library.cuInit(0); "
    "library.cuDeviceGetCount(ctypes.byref(count)); print(count.value)"
)
_MEMORY = (
    "import json, sys; from naiad.guests.memory.processes import memory_of, process_memory; pid = int(sys.argv[1]); "
    "print(json.dumps((memory_of([pid])[pid] - process_memory(pid)) >> 20))"
)


def device_count() -> int:
    """How many GPUs there are; asked in a process of its own, whose loader finds the stand-in of the tests, too."""
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def run_checkout(table: Table, code: str, *arguments: str, environ: Mapping[str, str]) -> str:
    """The output of code that imports naiad, by the interpreter that runs this program."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=max(1, min(60, table.remaining)),
        env={**os.environ, **environ},
    )
    if not done.stdout.strip():
        raise RuntimeError(f"ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def doctor(table: Table, work: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """What `naiad doctor` says of the GPUs: no error and no warning. It examines no models, which takes longer."""
    repository = work / "no-models"
    repository.mkdir()
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--env-store={work / 'store'}"]
    document = json.loads(run_checkout(table, _DOCTOR, str(repository), "--json", *ports, environ=environ))
    found = [each for each in document["findings"] if each["code"].startswith("gpu")]
    told = {each["code"]: each["message"] for each in found}
    return {**told, "names the GPUs": "gpu" in told, "no warning": all(each["severity"] == "note" for each in found)}


def registered(client: Connection, model: str) -> dict[str, Any]:
    """What the statistics say is registered with the driver while large outputs are sent."""
    values = np.ones(LARGE // 4, np.float32)
    seen = 0
    for _ in range(20):
        client.infer(model, values)
        usage = _statistics(client, model).get("memory_usage", [])
        seen = max([seen, *[each["byte_size"] for each in usage if each["type"] == "CPU_PINNED"]])
        if seen:
            break
    return {"MiB": seen >> 20, "registered": seen > 0}


def _statistics(client: Connection, model: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v2/models/{model}/stats")["model_stats"][0]
    return found


def counted(table: Table, client: Connection, guest: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """How much GPU memory of a guest the server counts: none in a container with process numbers of its own."""
    pid = client.probe(guest, "process_id")
    mebibytes = int(run_checkout(table, _MEMORY, str(pid), environ=environ))
    return {"GPU memory of a guest, MiB": mebibytes, "process numbers": str(Path("/proc/self/ns/pid").readlink())}


def write_several(repository: Path, models: Path) -> None:
    """An echo model on each of two GPUs, and one that sees the second one alone."""
    for name, group in (("on_0", "KIND_GPU gpus: 0"), ("on_1", "KIND_GPU gpus: 1"), ("sees_1", "KIND_MODEL")):
        shutil.copytree(models / "echo", repository / name)
        with (repository / name / "config.pbtxt").open("a") as file:
            file.write(f"instance_group {{ kind: {group} }}\n")
    code = repository / "sees_1" / "1" / "model.py"
    code.write_text(f'import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = "1"\n{code.read_text()}')


def write_example(repository: Path) -> Path:
    """The models of `examples/gpu`."""
    return Path(shutil.copytree(EXAMPLE, repository))


def example(client: Connection) -> dict[str, Any]:
    """The chain of three frameworks: where each model got its input, and whether the values are right."""
    found: dict[str, Any] = {}
    for number in (1, 2):
        rows = np.random.default_rng(number).random((256, 1024), np.float32)
        given = {
            "name": "IN",
            "datatype": "FP32",
            "shape": [256, 1024],
            "parameters": {"binary_data_size": rows.nbytes},
        }
        outputs: Sequence[Mapping[str, Any]] = [
            {"name": "OUT", "parameters": {"binary_data": True}},
            {"name": "CAME_FROM", "parameters": {"binary_data": False}},
        ]
        head = json.dumps({"inputs": [given], "outputs": outputs}).encode()
        headers, body = client.post(
            "/v2/models/chain/infer", head + rows.tobytes(), {"Inference-Header-Content-Length": str(len(head))}
        )
        start = int(headers["Inference-Header-Content-Length"])
        document = {each["name"]: each for each in json.loads(body[:start])["outputs"]}
        answer = np.frombuffer(body[start:], np.float32).reshape(rows.shape)
        normal = (rows - rows.mean(1, keepdims=True)) / rows.std(1, ddof=1, keepdims=True)
        squares = np.tanh(normal) ** 2
        places = document["CAME_FROM"]["data"]
        found[f"request {number}"] = dict(zip(_STEPS, places, strict=True))
        found["right"] = bool(np.allclose(answer, squares / (squares + 1), atol=1e-4))
        found["stays on the GPU"] = number == 1 or places[1:] == ["GPU", "GPU"]
    return found

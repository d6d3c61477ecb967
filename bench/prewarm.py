"""`python -m bench.prewarm --python PYTHON --modules pandas`: what forking a model's instances saves.

Starts a server with one model of several instances that imports the modules, alternately with and without PREWARM.
Prints the medians of the seconds until the server is ready, and of the memory of all processes below the server after
they have executed requests, the fork server included. The first start of each kind compiles the modules and does not
count.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.results import OURS
from bench.servers import HOST, Program, Server, running

_MODEL = """
import triton_python_backend_utils as pb_utils
import {modules}


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.as_numpy())]) for each in inputs]
"""
_CONFIG = """
backend: "python"
input {{ name: "IN" data_type: TYPE_FP32 dims: [-1] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }}
instance_group {{ count: {instances} kind: KIND_CPU }}
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}
"""
_PREWARM = 'parameters {{ key: "PREWARM" value {{ string_value: "{modules}" }} }}\n'
_REQUESTS = 50
_MIB = 1 << 20


def main() -> int:
    options = _options()
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds + 1):
            for is_forked, values in found.items():
                measured = _measure(options, Path(folder), is_forked=is_forked)
                if number:  # the first start of each kind compiles the environment's modules
                    values.append(measured)
    print(f"{options.instances} instances that import {options.modules}, median of {options.rounds} starts\n")
    print("| | until ready | all instances | each |\n|---|---|---|---|")
    for is_forked, name in ((False, "started one by one"), (True, "forked")):
        seconds, memory = (statistics.median(column) for column in zip(*found[is_forked], strict=True))
        print(f"| {name} | {seconds:.2f} s | {memory:.0f} MiB | {memory / options.instances:.1f} MiB |")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.prewarm")
    parser.add_argument("--python", type=Path, required=True, help="the interpreter of an environment with the modules")
    parser.add_argument("--modules", required=True, help="the modules that the model imports, separated by commas")
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _measure(options: argparse.Namespace, work: Path, *, is_forked: bool) -> tuple[float, float]:
    """Seconds until the server is ready, and memory (PSS, MiB) of all processes below it."""
    version = work / "models" / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(_MODEL.format(modules=options.modules))
    config = _CONFIG.format(instances=options.instances, environment=options.python.parents[1])
    config += _PREWARM.format(modules=options.modules) if is_forked else ""
    (version.parent / "config.pbtxt").write_text(config)
    program = Program(OURS, [str(Path(sys.executable).with_name("tritonserver"))], {})
    before = _log_of(work)
    with running(program, work / "models", work) as server:
        assert ("prewarmed" in server.log[len(before) :]) is is_forked, server.log
        with ThreadPoolExecutor(options.instances) as threads:
            list(threads.map(_work, [server] * options.instances))
        return server.start_seconds, server.memory(1).instance_pss / _MIB


def _log_of(work: Path) -> str:
    """The log of the servers before this one."""
    file = work / f"{OURS}.log"
    return file.read_text(errors="replace") if file.exists() else ""


def _work(server: Server) -> None:
    """Send requests to the instances; several threads do this concurrently."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    body = json.dumps({"inputs": [tensor]})
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=30)
    for _ in range(_REQUESTS):
        connection.request("POST", "/v2/models/m/infer", body)
        assert connection.getresponse().read()
    connection.close()


if __name__ == "__main__":
    sys.exit(main())

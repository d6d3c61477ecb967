"""`python -m bench.long_tensors`: calls between models, ensembles and requests with long tensors, beside the reference.

Both servers run the same models at the same time, and each case is measured by turns. For a call, the calling model
makes it again and again within one request and measures each; for other cases a client of tritonclient does. A figure
is the median over all rounds; a ratio is the median of the rounds' ratios. Prints a table.

`--beside NAME=PROGRAM` measures a further server, such as the `tritonserver` of an earlier commit's environment.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from bench import ours, reference
from bench.report import table
from bench.servers import Program, Server, running

FOLDER = Path(__file__).parents[1] / ".bench"
WARM_UP = 5
IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""
CALLS = f"""
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SECONDS", measure(request))]) for request in requests]


def measure(request):
    count, elements = pb_utils.get_input_tensor_by_name(request, "CALLS").as_numpy().tolist()
    data = np.arange(elements, dtype=np.float32)
    seconds = []
    for _ in range(count + {WARM_UP}):
        began = time.perf_counter()
        call = pb_utils.InferenceRequest(
            model_name="TARGET", requested_output_names=["OUTPUT0"], inputs=[pb_utils.Tensor("INPUT0", data)]
        )
        response = call.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        array = pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()
        seconds.append(time.perf_counter() - began)
        assert array.size == data.size and array[-1] == data[-1]
        del array, response
    return np.array(seconds[{WARM_UP}:])
"""
_PORTS = "".join(
    f'{side} {{ name: "{side.upper()}0" data_type: TYPE_FP32 dims: [-1] }}\n' for side in ("input", "output")
)
_CALL_PORTS = """
input { name: "CALLS" data_type: TYPE_INT64 dims: [2] }
output { name: "SECONDS" data_type: TYPE_FP64 dims: [-1] }
"""
_STEPS = ("INPUT0", "first", "second", "OUTPUT0")

Figures = Mapping[str, float]
"""Of one turn: `us`, the median latency; `cpu`, CPU microseconds of all processes of the server per request or call."""


def main() -> int:
    options = _options()
    cases: dict[str, Callable[[Server], Figures]] = {
        "call, 256 KiB": partial(measure_calls, model="calls", count=200, elements=1 << 16),
        "call, 1 MiB": partial(measure_calls, model="calls", count=100, elements=1 << 18),
        "call, 16 MiB": partial(measure_calls, model="calls", count=25, elements=1 << 22),
        "call of an ensemble of three steps, 16 MiB": partial(
            measure_calls, model="calls_ensemble", count=12, elements=1 << 22
        ),
        "ensemble of three steps over HTTP, 1 MiB": partial(
            measure_client, "http", model="ensemble", count=60, elements=1 << 18
        ),
        "identity over gRPC, 64 KiB": partial(measure_client, "grpc", model="identity", count=200, elements=1 << 14),
        "identity over gRPC, 16 MiB": partial(measure_client, "grpc", model="identity", count=16, elements=1 << 22),
    }
    installed = reference.install(FOLDER / "reference")
    programs = [
        Program("naiad", [str(ours.install(FOLDER, installed))], {}),
        Program("Triton", installed.server_command(), installed.server_environ(packages=True)),
        *[Program(name, [program], {}) for name, _, program in (each.partition("=") for each in options.beside)],
    ]
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        repository = Path(folder) / "models"
        write_models(repository)
        servers = {each.name: stack.enter_context(running(each, repository, Path(folder))) for each in programs}
        for case, measure in cases.items():
            if options.only in case:
                rows.append((case, *_row(measure, servers, options.rounds)))
                print(" | ".join(rows[-1]), flush=True)
    heads = ["case", *[f"{name}, us (CPU)" for name in servers]]
    heads += [f"{name} / Triton (CPU)" for name in servers if name != "Triton"]
    print(table(heads, rows))
    return 0


def _row(measure: Callable[[Server], Figures], servers: Mapping[str, Server], rounds: int) -> list[str]:
    """The cells of one case: figures of each server, and the ratios of all but Triton to it."""
    found: dict[str, list[Figures]] = {name: [] for name in servers}
    for number in range(rounds):
        for name in servers if number % 2 else reversed(servers):
            found[name].append(measure(servers[name]))

    def median(name: str, key: str) -> float:
        return statistics.median([turn[key] for turn in found[name]])

    def ratio(name: str, key: str) -> float:
        pairs = zip(found[name], found["Triton"], strict=True)
        return statistics.median([mine[key] / theirs[key] for mine, theirs in pairs])

    cells = [f"{median(name, 'us'):,.0f} ({median(name, 'cpu'):,.0f})" for name in servers]
    return [*cells, *[f"{ratio(name, 'us'):.2f} ({ratio(name, 'cpu'):.2f})" for name in servers if name != "Triton"]]


def measure_calls(server: Server, *, model: str, count: int, elements: int) -> Figures:
    """*count* calls with a tensor of *elements* numbers, one after the other, within one request."""
    http = importlib.import_module("tritonclient.http")
    with http.InferenceServerClient(server.address("http"), network_timeout=600.0) as client:
        given = http.InferInput("CALLS", [2], "INT64")
        given.set_data_from_numpy(np.array([count, elements]))
        before = sum(server.cpu_seconds())
        seconds = client.infer(model, [given]).as_numpy("SECONDS")
    spent = sum(server.cpu_seconds()) - before
    return {"us": float(np.median(seconds)) * 1e6, "cpu": spent / (count + WARM_UP) * 1e6}


def measure_client(protocol: str, server: Server, *, model: str, count: int, elements: int) -> Figures:
    """*count* requests of one client with a tensor of *elements* numbers, one after the other."""
    module = importlib.import_module(f"tritonclient.{protocol}")
    data = np.arange(elements, dtype=np.float32)
    seconds, before = [], 0.0
    with module.InferenceServerClient(server.address(protocol)) as client:
        given = module.InferInput("INPUT0", [elements], "FP32")
        given.set_data_from_numpy(data)
        for number in range(count + WARM_UP):
            if number == WARM_UP:
                before = sum(server.cpu_seconds())
            began = time.perf_counter()
            result = client.infer(model, [given])
            seconds.append(time.perf_counter() - began)
            assert result.as_numpy("OUTPUT0")[-1] == data[-1]
    spent = sum(server.cpu_seconds()) - before
    return {"us": statistics.median(seconds[WARM_UP:]) * 1e6, "cpu": spent / count * 1e6}


def write_models(repository: Path) -> None:
    """Write two identities, an ensemble of three steps, and models that call one of them."""
    for name in ("identity", "other"):
        _write(repository / name, IDENTITY, f'backend: "python"\n{_PORTS}')
    for name, target in (("calls", "identity"), ("calls_ensemble", "ensemble")):
        _write(repository / name, CALLS.replace("TARGET", target), f'backend: "python"\n{_CALL_PORTS}')
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{source}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{target}" }} }}\n'
        for model, (source, target) in zip(("identity", "other", "identity"), itertools.pairwise(_STEPS), strict=True)
    )
    _write(repository / "ensemble", "", f'platform: "ensemble"\n{_PORTS}ensemble_scheduling {{\n{steps}}}\n')


def _write(model: Path, code: str, config: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(config)
    if code:
        (model / "1" / "model.py").write_text(code)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.long_tensors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each server for each case")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure the cases whose names contain this")
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=PROGRAM", help="a further server")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.saved_models`: what serving an ONNX file costs beside calling ONNX Runtime in a script.

Three models with random weights, which this program writes: one of some milliseconds, and a small transformer encoder
with and without dynamic batching. The script calls the same files, with as many threads, one call after the other. The
least server does that for each request, in one process (`programs/serve.py`). All are measured by turns. ONNX Runtime
is that of the environment which the backend declares.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.interpreters import declared_by, with_packages
from bench.report import PAGE, SAVED_BEGIN, SAVED_END, publish, table, written_by
from bench.results import OURS, Results
from bench.scaling.load import Load, Reading, infer_request, measure
from bench.servers import Program, free_ports, running

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".bench" / "saved_models"
STORE = FOLDER / "store"
SCRIPT = "script"
LEAST = "least server"
DENSE, ENCODER, BATCHED = "dense", "encoder", "encoder_batched"
_WIDTH, _TOKENS, _MOST_ROWS = 256, 16, 32
_WARM_UP_SECONDS = 2.0
_SHAPES = {DENSE: [1, _WIDTH], ENCODER: [1, _TOKENS, 128], BATCHED: [1, _TOKENS, 128]}
_CLIENTS = (1, 16)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.saved_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each load")
    parser.add_argument("--write", action="store_true", help="write bench/results.md")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = _files()
    results = Results()
    with tempfile.TemporaryDirectory(prefix="naiad-bench-", ignore_cleanup_errors=True) as folder:
        models = Path(folder) / "models"
        for name in _SHAPES:
            _write_model(models, name, files[DENSE if name == DENSE else ENCODER])
        python = declared_by("onnxruntime", STORE)
        program = Program(OURS, [sys.executable, "-m", "naiad", "serve", f"--env-store={STORE}"], {})
        with running(program, models, Path(folder)) as server:
            for name, shape in _SHAPES.items():
                for clients in _CLIENTS:
                    measure(server.http_port, Load([infer_request(name, ["X"], *shape)], clients), _WARM_UP_SECONDS)
            for _ in range(options.rounds):
                for name, shape in _SHAPES.items():
                    results.add(name, SCRIPT, _sample(_call(python, files[name], shape, options.seconds)))
                    loads = {clients: Load([infer_request(name, ["X"], *shape)], clients) for clients in _CLIENTS}
                    with _least_server(python, files[name], shape) as port:
                        for clients, load in loads.items():
                            reading = measure(port, load, options.seconds)
                            results.add(_case(name, clients), LEAST, _sample(reading))
                    for clients, load in loads.items():
                        reading = measure(server.http_port, load, options.seconds)
                        results.add(_case(name, clients), OURS, _sample(reading))
    made = section(results, options)
    publish(PAGE, made, (SAVED_BEGIN, SAVED_END), write=options.write)
    return 0


def section(results: Results, options: argparse.Namespace) -> str:
    """The section of the page on what was measured."""
    rows = []
    for name, title in (
        (DENSE, "15 dense layers"),
        (ENCODER, f"encoder of four layers, {_TOKENS} tokens"),
        (BATCHED, "the same with dynamic batching"),
    ):
        script = results.median(name, SCRIPT, "each")
        cells = [title, _figure(script)]
        for clients in _CLIENTS:
            case = results.samples.get(_case(name, clients), {})
            each = results.median(_case(name, clients), OURS, "each")
            cells += [_figure(each)]
            for other in (results.samples.get(name, {}).get(SCRIPT, []), case.get(LEAST, [])):
                ratios = [one["each"] / two["each"] for one, two in zip(case.get(OURS, []), other, strict=False)]
                cells += [f"{statistics.median(ratios):.2f} x" if ratios else "-"]
        rows.append(tuple(cells))
    rates = [results.median(_case(name, 16), OURS, "each") for name in (ENCODER, BATCHED)]
    gain = ""
    if rates[0] is not None and rates[1] is not None:
        gain = f" Batching gives {rates[0] / rates[1]:.1f} times the rate with 16 clients."
    introduction = (
        f"{written_by('bench.saved_models')} Microseconds for each request: the time of a load by its requests, which "
        f"is the latency of one client. Medians of {options.rounds} turns of {options.seconds:g} s. The script calls "
        f"ONNX Runtime in a loop. The least server (`bench/saved_models/programs/serve.py`) does the same for each "
        f"request that it gets over HTTP, in one process, without looking at it: what it takes more than the script is "
        f"the price of a socket and of the pauses between calls here. All use {len(os.sched_getaffinity(0))} threads, "
        f"and the load generator shares the cores.{gain}"
    )
    heads = [head for clients in _CLIENTS for head in (_few(clients), "/ script", "/ least server")]
    return (
        f"{SAVED_BEGIN}\n\n## ONNX models beside the library called directly\n\n{introduction}\n\n"
        f"{table(('', 'script', *heads), rows)}\n\n{SAVED_END}"
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _few(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def _case(name: str, clients: int) -> str:
    return f"{name}, {_few(clients)}"


def _sample(reading: Reading) -> dict[str, float]:
    return {"each": reading.seconds / reading.requests * 1e6, "p50": reading.p50}


def _files() -> dict[str, Path]:
    """The models, written once by the package `onnx` in an environment of its own."""
    files = {DENSE: FOLDER / "dense.onnx", ENCODER: FOLDER / "encoder.onnx", BATCHED: FOLDER / "encoder.onnx"}
    if not all(path.exists() for path in files.values()):
        python = with_packages(FOLDER / "writer", ["onnx", "numpy"])
        subprocess.run([python, PROGRAMS / "write.py", files[DENSE], files[ENCODER]], check=True)
    return files


def _write_model(models: Path, name: str, file: Path) -> None:
    version = models / name / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").symlink_to(file)
    config = 'backend: "onnxruntime"\n'
    if name == BATCHED:
        config += f"max_batch_size: {_MOST_ROWS}\ndynamic_batching {{ }}\n"
    else:
        dims = ", ".join(["-1", *map(str, _SHAPES[name][1:])])
        config += "".join(
            f'{kind} {{ name: "{tensor}" data_type: TYPE_FP32 dims: [{dims}] }}\n'
            for kind, tensor in (("input", "X"), ("output", "Y"))
        )
    (version.parent / "config.pbtxt").write_text(config)


def _call(python: Path, file: Path, shape: list[int], seconds: float) -> Reading:
    command = [python, PROGRAMS / "call.py", str(file), json.dumps(shape), _threads(), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    calls, took, p50 = done.stdout.split()
    return Reading(int(calls), float(took), float(p50) * 1e6, 0.0)


@contextmanager
def _least_server(python: Path, file: Path, shape: list[int]) -> Iterator[int]:
    """The least server of a file, ready; its port."""
    (port,) = free_ports(1)
    command = [python, PROGRAMS / "serve.py", str(file), json.dumps(shape), _threads(), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"{PROGRAMS / 'serve.py'} did not start")
            yield port
        finally:
            process.kill()


def _threads() -> str:
    return str(len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    raise SystemExit(main())

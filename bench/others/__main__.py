"""`python -m bench.others` (`make bench-others`): naiad beside the servers that its users would pick instead.

Sums and differences of two tensors, in JSON and in binary, of 16 numbers to 1 MiB, and over gRPC, beside the real
Triton and a floor: the least program of two processes that answers them (`programs/floor.py`). In JSON also beside the
servers of others, and with those a random forest of scikit-learn and an ONNX file, one row for each request, in batches
where the server forms them. Triton's backends for such files are not among its wheels. Each server has an
environment of its own, which is built once in `.bench/others`, and the settings that its documentation recommends.
Servers are started one at a time, by turns. CPU is that of all processes of a server.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import grpc

from bench.interpreters import declared_by, with_packages
from bench.others import grpc_load
from bench.others.contestants import (
    ADD_SUB,
    BINARY,
    CONTESTANTS,
    FEATURES,
    FLOOR,
    FOREST,
    GRPC,
    JOBS,
    LARGE,
    LONG_JSON,
    MIDDLE,
    NETWORK,
    PROGRAMS,
    SUMS,
    Contestant,
    Place,
)
from bench.report import OTHERS_BEGIN, OTHERS_END, PAGE, publish, table, written_by
from bench.results import OURS, THEIRS, Results
from bench.scaling.load import GENERATOR, Load, Reading, Request, measure
from bench.scaling.processes import read_family, spent
from bench.servers import HOST, free_ports

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".bench" / "others"
_START_SECONDS = 180.0
_STOP_SECONDS = 20.0
_WARM_UP_SECONDS = 2.0
_CLIENTS = (1, 16)
_TITLES = {
    ADD_SUB: "Sums and differences of two lists of 16 numbers, in JSON",
    FOREST: "A random forest of 100 trees in scikit-learn, one row of 20 features for each request",
    NETWORK: "An ONNX file of three layers, 20 to 256 to 256 to 4, one row for each request",
    BINARY: "The same sums with binary tensors of 16 numbers",
    LONG_JSON: "The same sums of two lists of 1,000 numbers, in JSON",
    MIDDLE: "The same sums with binary tensors, 64 KiB in each direction",
    LARGE: "The same sums with binary tensors, 1 MiB in each direction",
    GRPC: "The same sums of 16 numbers over gRPC",
}


def main() -> int:
    options = _options()
    if GRPC in options.jobs and not grpc_load.PROGRAM:  # before minutes of other jobs, whose figures would be lost
        raise SystemExit("cannot measure gRPC: install h2load (Debian's package nghttp2-client), or name other --jobs")
    chosen = [each for each in CONTESTANTS if not options.only or each.name in options.only]
    versions: dict[str, str] = {}
    results = Results()
    pythons = {}
    for contestant in chosen:
        try:
            pythons[contestant.name] = _environment(contestant)
        except subprocess.CalledProcessError as error:
            print(f"{contestant.name} is left out: its packages cannot be installed ({error})", file=sys.stderr)
    for contestant in (each for each in chosen if each.name in pythons):
        versions[contestant.name] = _version(pythons[contestant.name], contestant.distribution)
    for _ in range(options.rounds):
        for job in options.jobs:
            for contestant in (each for each in chosen if each.name in pythons and job in each.jobs):
                _turn(contestant, job, pythons[contestant.name], options.seconds, results)
    made = section([each for each in chosen if each.name in pythons], versions, results, options)
    publish(PAGE, made, (OTHERS_BEGIN, OTHERS_END), write=options.write)
    return 0


def section(
    contestants: Sequence[Contestant], versions: Mapping[str, str], results: Results, options: argparse.Namespace
) -> str:
    """The section of the page on what was measured."""
    generator = GENERATOR.split(" ", maxsplit=1)[0]
    introduction = (
        f"{written_by('bench.others')} The load generator ({generator}) shares the cores. JSON over HTTP; medians of "
        f"{options.rounds} turns of {options.seconds:g} s. CPU is that of all processes of a server, in us for each "
        "request. Each server has one worker, process or replica, as naiad has one guest."
    )
    parts = [f"{OTHERS_BEGIN}\n\n## Beside what users would pick instead\n\n{introduction}"]
    for job in options.jobs:
        rows = []
        for each in (each for each in contestants if job in each.jobs):
            cells = [f"{each.name} {versions[each.name]}".rstrip(), each.settings]
            for clients in _CLIENTS:
                case = _case(job, clients)
                rate, p50, cpu = (results.median(case, each.name, metric) for metric in ("requests/s", "p50", "cpu"))
                cells += ["-"] * 3 if rate is None or p50 is None or cpu is None else _cells(rate, p50, cpu)
            rows.append(tuple(cells))
        if job in SUMS and OURS in versions:
            rows += [_ratios(job, results, other) for other in (FLOOR, THEIRS) if other in versions]
        heads = [f"{_few(clients)}: {name}" for clients in _CLIENTS for name in ("requests/s", "p50", "CPU")]
        parts.append(f"{_TITLES[job]}:\n\n{table(('', 'settings', *heads), rows)}")
    return "\n\n".join((*parts, OTHERS_END))


def _ratios(job: str, results: Results, other: str) -> tuple[str, ...]:
    """The row of naiad's figures as multiples of another server's."""
    found = [
        results.ratio(_case(job, clients), metric, OURS, other)
        for clients in _CLIENTS
        for metric in ("requests/s", "p50", "cpu")
    ]
    return (f"{OURS} / {other}", "", *("-" if ratio is None else f"{ratio:.2f} x" for ratio in found))


def _cells(rate: float, p50: float, cpu: float) -> list[str]:
    return [f"{rate:,.0f}", f"{p50 / 1000:.2f} ms", f"{cpu:,.0f}"]


def _few(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def _case(job: str, clients: int) -> str:
    return f"{job}, {_few(clients)}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.others", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--only", nargs="+", metavar="SERVER", help=", ".join(each.name for each in CONTESTANTS))
    parser.add_argument("--write", action="store_true", help="write bench/results.md")
    return parser.parse_args()


def _environment(contestant: Contestant) -> Path:
    """The interpreter that a contestant runs with, in an environment with its packages.

    naiad runs from this checkout; its backends have their environments in stores of the benchmark's own.
    """
    if not contestant.packages:
        return Path(sys.executable)
    return with_packages(FOLDER / contestant.environment, contestant.packages)


def _version(python: Path, distribution: str) -> str:
    if not distribution:
        return ""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _store(job: str) -> Path:
    """The store of naiad's environments for a job: `declared_by` wants one with nothing else in it."""
    return FOLDER / f"{job}-store"


def _model(contestant: Contestant, job: str, python: Path) -> Path:
    """The file with the model of a job: a forest, of the scikit-learn that will read it, or the ONNX file of all."""
    if job in SUMS:
        return Path()
    path = FOLDER / (f"{contestant.environment}-forest{contestant.forest}" if job == FOREST else "network.onnx")
    if not path.exists():
        if job == NETWORK:
            python = with_packages(FOLDER / "onnx", ["onnx"])
        elif contestant.name == OURS:
            python = declared_by("sklearn", _store(job))
        subprocess.run([python, PROGRAMS / "fit.py", path, str(FEATURES)], check=True)
    return path


def _turn(contestant: Contestant, job: str, python: Path, seconds: float, results: Results) -> None:
    """Start a server, and measure the loads of a job with it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = _model(contestant, job, python)
    with tempfile.TemporaryDirectory(prefix="naiad-bench-", ignore_cleanup_errors=True) as folder:
        place = Place(python, model, Path(folder), free_ports(1)[0])
        with _running(contestant, job, place) as process:
            request = contestant.request(job)
            _wait_for_answer(partial(grpc_load.ask if job == GRPC else _ask, place.port, request), request, process)
            for clients in _CLIENTS:
                _measure(job, place.port, request, clients, _WARM_UP_SECONDS)
                before = read_family(process.pid)
                reading = _measure(job, place.port, request, clients, seconds)
                cpu = sum(spent(before, read_family(process.pid), process.pid).values())
                sample = {"requests/s": reading.requests / reading.seconds, "p50": reading.p50}
                results.add(_case(job, clients), contestant.name, {**sample, "cpu": cpu / reading.requests * 1e6})


def _measure(job: str, port: int, request: Request, clients: int, seconds: float) -> Reading:
    if job == GRPC:
        return grpc_load.measure(port, request, clients, seconds)
    return measure(port, Load([request], clients), seconds)


@contextlib.contextmanager
def _running(contestant: Contestant, job: str, place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """A server; it is ended with all its processes."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NAIAD_"))}
    environ |= {"MODEL": "" if job in SUMS else str(place.model), "BENTOML_DO_NOT_TRACK": "1"}
    environ["NAIAD_STORE"] = str(_store(job))
    log = FOLDER / f"{contestant.environment}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            contestant.command(job, place),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=place.folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        below = [pid for pid in read_family(process.pid) if pid != process.pid]
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        for pid in (*below, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _ask(port: int, request: Request) -> None:
    """Send a request over HTTP.

    Raises:
        OSError: If it is not answered with 200, or not at all.
    """
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=30)) as connection:
        connection.request("POST", request.path, request.body, request.headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise OSError(f"{response.status} {response.read()[:300]!r}")
        response.read()


def _wait_for_answer(ask: Callable[[], None], request: Request, process: subprocess.Popen[bytes]) -> None:
    """Ask until the server answers.

    Raises:
        SystemExit: If it exits, or answers nothing within the time for a start.
    """
    deadline = time.monotonic() + _START_SECONDS
    problem: object = "nothing listens"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            ask()
        except (OSError, http.client.HTTPException, grpc.RpcError) as error:
            problem = error
        else:
            return
        time.sleep(0.1)
    raise SystemExit(f"no answer to {request.path}: {problem}; see the logs in {FOLDER}")


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m bench.elastic`: many models on demand within a memory limit, and instances that follow the load.

One server offers many tiny models (1,000), of which the first 50 get most requests: the model of each request follows a
Zipf law. Clients send requests at a fixed total rate for `--seconds`, while the guests' memory (PSS) is sampled. A
model's answer says how many requests its process has executed, so that first answers of cold models are known. Then one
model with 1 to 4 instances gets more requests than one instance can execute, until it has 4, and none until it has 1.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import http.client
import itertools
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.report import ELASTIC_BEGIN, ELASTIC_END, PAGE, publish, table, written_by
from bench.results import OURS
from bench.scaling.processes import parse_pss
from bench.servers import HOST, Program, Server, running

_MIB = 1 << 20
_HOT = 50
_EXPONENT = 1.5
_COLD_TARGET, _SCALE_TARGET = 0.5, 2.0
_SCALED = "scaled"
_IDLE_SECONDS = 1.0
_MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.count += 1
            time.sleep(float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]))
            out = pb_utils.Tensor("OUT", np.array([self.count], np.float32))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
"""
_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [1] }
output { name: "OUT" data_type: TYPE_FP32 dims: [1] }
"""
_RANGE = f"""
parameters {{ key: "demand" value {{ string_value: "pinned" }} }}
parameters {{ key: "min_instances" value {{ string_value: "1" }} }}
parameters {{ key: "max_instances" value {{ string_value: "4" }} }}
parameters {{ key: "scale_idle_seconds" value {{ string_value: "{_IDLE_SECONDS:g}" }} }}
"""


@dataclass
class Outcome:
    """What was measured.

    Attributes:
        warm: Seconds of the answers of processes that had answered before.
        cold: Seconds of the first answers of processes.
        errors: Answers that were errors, by their text.
        memory: Samples of the guests' memory in bytes.
        guests: Samples of their number.
        used: The models that got requests.
        ready: Seconds until the server was ready.
        up: Seconds from the first request until there were four instances.
        down: Seconds from the last answer until there was one.
    """

    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    guests: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    ready: float = 0.0
    up: float = 0.0
    down: float = 0.0


class ZipfLaw:
    """Chooses numbers from 0 on, where the number at rank r has the weight 1 / r ** exponent."""

    def __init__(self, count: int, exponent: float, seed: int) -> None:
        self._sums = list(itertools.accumulate(1 / rank**exponent for rank in range(1, count + 1)))
        self._random = random.Random(seed)

    def choose(self) -> int:
        """A number."""
        return bisect.bisect_left(self._sums, self._random.random() * self._sums[-1])

    def share(self, first: int) -> float:
        """The share of the first numbers."""
        return self._sums[first - 1] / self._sums[-1]


def main() -> int:
    options = _options()
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _write_models(work / "models", options.models)
        limit = options.memory_mib * _MIB
        command = [
            str(Path(sys.executable).with_name("tritonserver")),
            f"--processes={options.processes}",
            *("--model-control-mode=demand", f"--models-memory={limit}", "--prewarm=true"),
        ]
        with running(Program(OURS, command, {}), work / "models", work) as server:
            outcome.ready = server.start_seconds
            _load_by_zipf(server, outcome, options)
            _scale(server, outcome)
    made = section(outcome, options)
    publish(PAGE, made, (ELASTIC_BEGIN, ELASTIC_END), write=options.write)
    for text in sorted(set(outcome.errors))[:5]:
        print(f"error: {text}")
    return 1 if outcome.errors else 0


def section(outcome: Outcome, options: argparse.Namespace) -> str:
    """The section of the page on what was measured."""
    law = ZipfLaw(options.models, _EXPONENT, 0)
    cold, warm = sorted(outcome.cold), sorted(outcome.warm)
    most = max(outcome.memory) / _MIB
    share = law.share(min(_HOT, options.models))
    rows = [
        (
            "requests, errors",
            f"{len(cold) + len(warm):,}, {len(outcome.errors)}",
            "0 errors",
            _verdict(not outcome.errors),
        ),
        (
            "memory of all guests (PSS), largest of the samples",
            f"{most:.0f} MiB",
            f"at most {options.memory_mib} MiB",
            _verdict(most <= options.memory_mib),
        ),
        (
            "first answer of a cold model: p50, p95, largest",
            f"{_part(cold, 0.5):.2f} s, {_part(cold, 0.95):.2f} s, {cold[-1]:.2f} s" if cold else "none",
            f"p50 below {_COLD_TARGET} s",
            _verdict(bool(cold) and _part(cold, 0.5) < _COLD_TARGET),
        ),
        (
            "answer of a loaded model: p50, p95",
            f"{_part(warm, 0.5) * 1e3:.1f} ms, {_part(warm, 0.95) * 1e3:.1f} ms",
            "",
            "",
        ),
        ("models used, loads", f"{len(outcome.used)}, {len(cold)}", "", ""),
        ("models loaded at a time: median", f"{statistics.median(outcome.guests):.0f}", "", ""),
        ("server ready, with no model loaded", f"{outcome.ready:.1f} s", "", ""),
        (
            "instances 1 to 4, from the first request on",
            f"{outcome.up:.2f} s",
            f"below {_SCALE_TARGET:g} s",
            _verdict(outcome.up < _SCALE_TARGET),
        ),
        (
            f"instances 4 to 1, `scale_idle_seconds` {_IDLE_SECONDS:g}",
            f"{outcome.down:.2f} s",
            f"below {_IDLE_SECONDS + _SCALE_TARGET:g} s",
            _verdict(outcome.down < _IDLE_SECONDS + _SCALE_TARGET),
        ),
    ]
    processes = f" of {options.processes} processes" if options.processes > 1 else ""
    introduction = (
        f"{written_by('bench.elastic')} {options.models:,} models on one server{processes}, {options.rate} requests a "
        f"second for {options.seconds:g} s by a Zipf law (exponent {_EXPONENT}): the first {_HOT} models get "
        f"{share:.0%}. Guests are forked (`--prewarm=true`). A first answer is the first one of a process, from "
        "sending the request on."
    )
    figures = table(("", "measured", "target", "met"), rows)
    return f"{ELASTIC_BEGIN}\n\n## Models on demand\n\n{introduction}\n\n{figures}\n\n{ELASTIC_END}"


def _verdict(is_met: bool) -> str:  # noqa: FBT001 - one argument, and named by the function
    return "yes" if is_met else "**no**"


def _part(ordered: Sequence[float], part: float) -> float:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.elastic", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long requests are sent")
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1, help="--processes of the server")
    parser.add_argument("--memory-mib", type=int, default=512, help="--models-memory of the server")
    parser.add_argument("--rate", type=int, default=50, help="requests per second of all clients together")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="write bench/results.md")
    return parser.parse_args()


def _write_models(folder: Path, count: int) -> None:
    for name in (*(f"m{number}" for number in range(count)), _SCALED):
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(_MODEL)
        (folder / name / "config.pbtxt").write_text(_CONFIG + (_RANGE if name == _SCALED else ""))


def _load_by_zipf(server: Server, outcome: Outcome, options: argparse.Namespace) -> None:
    """Send requests at the rate, and sample the guests meanwhile."""
    end = time.monotonic() + options.seconds
    clients = [
        threading.Thread(target=_send_by_zipf, args=(server, outcome, options, number, end))
        for number in range(options.clients)
    ]
    for client in clients:
        client.start()
    while time.monotonic() < end:
        sizes = list(_guest_sizes(server.pid))
        outcome.memory.append(sum(sizes))
        outcome.guests.append(len(sizes))
        time.sleep(0.5)
    for client in clients:
        client.join()


def _send_by_zipf(server: Server, outcome: Outcome, options: argparse.Namespace, number: int, end: float) -> None:
    law = ZipfLaw(options.models, _EXPONENT, number)
    pause = options.clients / options.rate
    following = time.monotonic() + pause * number / options.clients
    with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=120)) as connection:
        while following < end:
            time.sleep(max(following - time.monotonic(), 0))
            following = max(following + pause, time.monotonic())
            model = law.choose()
            began = time.perf_counter()
            count, error = _infer(connection, f"m{model}", 0.0)
            took = time.perf_counter() - began
            outcome.used.add(model)
            if error:
                outcome.errors.append(error)
            else:
                (outcome.cold if count == 1 else outcome.warm).append(took)


def _infer(connection: http.client.HTTPConnection, model: str, seconds: float) -> tuple[int, str]:
    """How many requests the process has executed, and the error if the request failed."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [seconds]}
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}))
    response = connection.getresponse()
    content = response.read()
    if response.status != http.HTTPStatus.OK:
        return 0, f"{model}: {response.status} {content[:200].decode(errors='replace')}"
    return int(json.loads(content)["outputs"][0]["data"][0]), ""


def _guest_sizes(server: int) -> Iterator[int]:
    """The PSS of each forked guest: all processes below the server, except its direct children."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(server).children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if process.ppid() != server:
                    yield parse_pss(Path(f"/proc/{process.pid}/smaps_rollup").read_text())


def _scale(server: Server, outcome: Outcome) -> None:
    """Measure how long it takes from one instance to four, and back."""
    is_over = threading.Event()
    clients = [threading.Thread(target=_send_slow, args=(server, outcome, is_over)) for _ in range(12)]
    began = time.monotonic()
    for client in clients:
        client.start()
    outcome.up = _seconds_until(server, 4, began)
    is_over.set()
    for client in clients:
        client.join()
    outcome.down = _seconds_until(server, 1, time.monotonic())


def _send_slow(server: Server, outcome: Outcome, is_over: threading.Event) -> None:
    with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=120)) as connection:
        while not is_over.is_set():
            _, error = _infer(connection, _SCALED, 0.1)
            if error:
                outcome.errors.append(error)


def _seconds_until(server: Server, instances: int, began: float) -> float:
    with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=120)) as connection:
        while time.monotonic() - began < 60:
            connection.request("GET", f"/v2/models/{_SCALED}/config")
            config = json.loads(connection.getresponse().read())
            if int(config["instance_group"][0]["count"]) == instances:
                return time.monotonic() - began
            time.sleep(0.02)
    raise SystemExit(f"the model did not get {instances} instances within a minute")


if __name__ == "__main__":
    sys.exit(main())

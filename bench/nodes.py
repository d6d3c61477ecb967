"""`python -m bench.nodes`: the rate of two servers on two nodes beside the rates of each alone. Needs Ray.

Both nodes of the Ray cluster are simulated on this machine, so the model sleeps instead of computing: what limits a
server is its number of instances, as on nodes with processors of their own. Clients keep all instances of a server
busy: of the first server, of the second one, and of both at once, by turns. The ratio is the rate of both divided by
the sum of the rates of each alone in the same round.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.report import NODES_BEGIN, NODES_END, PAGE, publish, table, written_by
from naiad.ray import ServerList

ROOT = Path(__file__).parents[1]
GOAL = 0.9
_SECONDS = 0.01
_INSTANCES = 2
_CLIENTS = 8
"""Clients of each server: more than its instances, so that none waits for a client."""
_START_SECONDS = 120
_FLAGS = tuple(f"--{each}-address=127.0.0.1" for each in ("http", "grpc", "metrics"))
_MODEL = f"""
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep({_SECONDS})
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given)]))
        return responses
"""
_CONFIG = f"""
backend: "python"
input {{ name: "IN" data_type: TYPE_FP32 dims: [-1] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }}
instance_group {{ count: {_INSTANCES} }}
"""


@dataclass
class Rates:
    """Requests per second of each round.

    Attributes:
        alone: Of each server without the other.
        both: Of both servers together.
    """

    alone: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    both: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The rate of both by the sum of the rates alone, of each round."""
        return [both / (first + second) for first, second, both in zip(*self.alone, self.both, strict=True)]


def main() -> int:
    options = _options()
    # The demonstration has the simulated cluster; its modules are not a package.
    sys.path.insert(0, str(ROOT / "examples" / "demo"))
    try:
        nodes = importlib.import_module("ray_nodes").Nodes()
    except ImportError as error:
        print(
            f"cannot measure on nodes: Ray cannot be imported ({error}); run make .venv/.ready-demo-ray",
            file=sys.stderr,
        )
        return 1
    rates = Rates()
    with tempfile.TemporaryDirectory() as folder, nodes:
        _write_model(Path(folder))
        _measure(_start(nodes, Path(folder)), rates, options)
    made = section(rates, options)
    publish(PAGE, made, (NODES_BEGIN, NODES_END), write=options.write)
    print(f"ratio: {statistics.median(rates.ratios):.3f}")
    return 0


def section(rates: Rates, options: argparse.Namespace) -> str:
    """The section of the page on what was measured."""
    ratios = sorted(rates.ratios)
    ratio = statistics.median(ratios)
    rows = [
        *(
            (f"the {place} server alone", f"{statistics.median(alone):.0f} requests/s", "", "")
            for place, alone in zip(("first", "second"), rates.alone, strict=True)
        ),
        ("both", f"{statistics.median(rates.both):.0f} requests/s", "", ""),
        (
            "both by the sum of each alone (least to most)",
            f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            f"at least {GOAL}",
            "yes" if ratio >= GOAL else "**no**",
        ),
    ]
    introduction = (
        f"{written_by('bench.nodes')} Two servers on two nodes of a Ray cluster, simulated on this machine. The "
        f"model has {_INSTANCES} instances, which sleep {_SECONDS * 1e3:g} ms for each request: at most "
        f"{_INSTANCES / _SECONDS:g} requests/s for a server. {_CLIENTS} HTTP clients for each server, "
        f"{options.seconds:g} s, {options.rounds} rounds by turns; figures are medians over the rounds. This shows "
        "what Ray and a second server cost; it does not show machines with processors and networks of their own."
    )
    figures = table(("", "measured", "goal", "met"), rows)
    return f"{NODES_BEGIN}\n\n## Servers on two nodes\n\n{introduction}\n\n{figures}\n\n{NODES_END}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.nodes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each of the three loads of a round")
    parser.add_argument("--write", action="store_true", help="write bench/results.md")
    return parser.parse_args()


def _write_model(folder: Path) -> None:
    version = folder / "sleep" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL)
    (folder / "sleep" / "config.pbtxt").write_text(_CONFIG)


def _start(nodes: Any, models: Path) -> Sequence[str]:
    """The addresses of two servers, one on each node."""
    command = [sys.executable, "-m", "naiad", "ray", "up", f"--model-repository={models}", "--min=2", *_FLAGS]
    # Each node has two CPUs, so that it has room for one server.
    command += ["--cpus=2", f"--address={nodes.dashboard}", f"--wait-seconds={_START_SECONDS}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START_SECONDS + 30)
    if done.returncode != 0:
        raise SystemExit(f"`naiad ray up` ended with code {done.returncode}: {done.stderr.strip()}")
    servers = ServerList(nodes.url)
    deadline = time.monotonic() + _START_SECONDS
    while len(listed := [each for each in servers.servers() if each["ready"]]) != 2:
        if time.monotonic() > deadline:
            raise SystemExit(f"{len(listed)} servers instead of 2 are ready after {_START_SECONDS} s")
        time.sleep(0.2)
    if len({each["node"] for each in listed}) != 2:
        raise SystemExit("Ray has placed both servers on one node")
    return [each["addresses"]["http"] for each in listed]


def _measure(addresses: Sequence[str], rates: Rates, options: argparse.Namespace) -> None:
    """Send the requests of all rounds; the order of the loads alternates."""
    loads = [(addresses[:1], rates.alone[0]), (addresses[1:], rates.alone[1]), (addresses, rates.both)]
    _rate(addresses, 1.0)  # connections, and the first requests of instances
    for number in range(options.rounds):
        for called, results in loads if number % 2 else reversed(loads):
            results.append(_rate(called, options.seconds))


def _rate(addresses: Sequence[str], seconds: float) -> float:
    """Requests per second of these servers, each with its clients, for this long."""
    counts: list[int] = []
    failures: list[str] = []
    end = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_send, args=(address, end, counts, failures))
        for address in addresses
        for _ in range(_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"a request failed: {failures[0]}")
    return sum(counts) / seconds


def _send(address: str, end: float, counts: list[int], failures: list[str]) -> None:
    """Send requests one after the other until *end*, and add the number of those that were answered before it."""
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1.0]}]}).encode()
    count = 0
    try:
        with contextlib.closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)) as connection:
            while True:
                connection.request("POST", "/v2/models/sleep/infer", body)
                response = connection.getresponse()
                content = response.read()
                if response.status != http.HTTPStatus.OK:
                    failures.append(f"{address}: {response.status} {content[:200].decode(errors='replace')}")
                    return
                if time.monotonic() > end:
                    counts.append(count)
                    return
                count += 1
    except (OSError, http.client.HTTPException) as error:
        failures.append(f"{address}: {error!r}")


if __name__ == "__main__":
    sys.exit(main())

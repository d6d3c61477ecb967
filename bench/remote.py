"""`python -m bench.remote`: what a model of the backend `remote` adds to its target's own latency.

Two servers of this checkout run on this machine: the target with a small Python model, and a server with two remote
models, which call the target over HTTP and over gRPC. One client sends requests one after the other to the target and
to the remote model by turns, in each protocol. A figure is the median over all rounds of each round's p50.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpcclient

from bench.report import PAGE, REMOTE_BEGIN, REMOTE_END, publish, table, written_by
from bench.results import OURS
from bench.servers import HOST, Program, Server, running

PROTOCOLS = ("HTTP", "gRPC")
GOAL_MS = 1.5
_MODEL_NAME = "identity"
_ELEMENTS = 16
_WARM_UP = 200
_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given)]))
        return responses
"""
_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
"""


@dataclass
class Latencies:
    """The p50 of each round, in seconds.

    Attributes:
        own: Of the target.
        remote: Of the remote model, in the same round.
    """

    own: list[float] = field(default_factory=list)
    remote: list[float] = field(default_factory=list)

    @property
    def added(self) -> list[float]:
        """What the remote model added in each round."""
        return [remote - own for own, remote in zip(self.own, self.remote, strict=True)]


def main() -> int:
    options = _options()
    measured = {protocol: Latencies() for protocol in PROTOCOLS}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _write_target(work / "target")
        with _server("target", work) as target:
            _write_remote(work / "remote", target)
            with _server("remote", work) as remote:
                _measure(target, remote, measured, options)
    made = section(measured, options)
    publish(PAGE, made, (REMOTE_BEGIN, REMOTE_END), write=options.write)
    return 0


def section(measured: dict[str, Latencies], options: argparse.Namespace) -> str:
    """The section of the page on what was measured."""
    rows = []
    for protocol, latencies in measured.items():
        added = sorted(each * 1e3 for each in latencies.added)
        median = statistics.median(added)
        rows.append(
            (
                protocol,
                f"{statistics.median(latencies.own) * 1e3:.2f} ms",
                f"{statistics.median(latencies.remote) * 1e3:.2f} ms",
                f"{median:.2f} ms ({added[0]:.2f} to {added[-1]:.2f})",
                f"at most {GOAL_MS} ms",
                "yes" if median <= GOAL_MS else "**no**",
            )
        )
    introduction = (
        f"{written_by('bench.remote')} A model that returns its input of {_ELEMENTS} numbers, called at its own "
        "server, and through a model of the [remote backend](../docs/reference/remote.md) on another server of this "
        "machine. "
        f"One client sends requests one after the other, {options.requests} to each by turns, {options.rounds} rounds. "
        "Figures are medians over the rounds of each round's p50. Client, remote model and target use the protocol of "
        "the first column."
    )
    headings = ("", "the target's own p50", "through the remote model", "added (least to most)", "goal", "met")
    figures = table(headings, rows)
    return f"{REMOTE_BEGIN}\n\n## Remote models\n\n{introduction}\n\n{figures}\n\n{REMOTE_END}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.remote", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=500, help="requests of each round to each of the two servers")
    parser.add_argument("--write", action="store_true", help="write bench/results.md")
    return parser.parse_args()


def _write_target(folder: Path) -> None:
    version = folder / _MODEL_NAME / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL)
    (folder / _MODEL_NAME / "config.pbtxt").write_text(_CONFIG)


def _write_remote(folder: Path, target: Server) -> None:
    for protocol in PROTOCOLS:
        url = f"{protocol.lower()}://{target.address(protocol.lower())}/v2/models/{_MODEL_NAME}"
        (folder / protocol / "1").mkdir(parents=True)
        (folder / protocol / "config.pbtxt").write_text(
            f'backend: "remote"\nparameters {{ key: "url" value {{ string_value: "{url}" }} }}\n'
        )


@contextlib.contextmanager
def _server(name: str, work: Path) -> Iterator[Server]:
    """A server of this checkout with the repository of this name."""
    command = [str(Path(sys.executable).with_name("tritonserver"))]
    # The name is that of the log and the cache; both servers are naiad's.
    with running(Program(f"{OURS}-{name}", command, {}), work / name, work) as server:
        yield server


def _measure(target: Server, remote: Server, measured: dict[str, Latencies], options: argparse.Namespace) -> None:
    """Send the requests of all rounds."""
    with contextlib.ExitStack() as stack:
        callers = {
            protocol: (
                stack.enter_context(connect(target, _MODEL_NAME)),
                stack.enter_context(connect(remote, protocol)),
            )
            for protocol, connect in (("HTTP", _http_caller), ("gRPC", _grpc_caller))
        }
        for pair in callers.values():
            for call in pair:
                _p50(call, _WARM_UP)
        for number in range(options.rounds):
            for protocol, (own, through) in callers.items():
                # The order alternates, so that neither profits from its place.
                order: Sequence[tuple[Callable[[], None], list[float]]] = (
                    (own, measured[protocol].own),
                    (through, measured[protocol].remote),
                )
                for call, results in order if number % 2 else reversed(order):
                    results.append(_p50(call, options.requests))


def _p50(call: Callable[[], None], requests: int) -> float:
    """The median of the seconds that requests take."""
    seconds = []
    for _ in range(requests):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


@contextlib.contextmanager
def _http_caller(server: Server, model: str) -> Iterator[Callable[[], None]]:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [_ELEMENTS], "data": [1.0] * _ELEMENTS}
    body = json.dumps({"inputs": [tensor]}).encode()
    with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=60)) as connection:

        def call() -> None:
            connection.request("POST", f"/v2/models/{model}/infer", body)
            response = connection.getresponse()
            content = response.read()
            if response.status != http.HTTPStatus.OK:
                raise SystemExit(f"{model}: {response.status} {content[:200].decode(errors='replace')}")

        yield call


@contextlib.contextmanager
def _grpc_caller(server: Server, model: str) -> Iterator[Callable[[], None]]:
    given = grpcclient.InferInput("IN", [_ELEMENTS], "FP32")
    given.set_data_from_numpy(np.ones(_ELEMENTS, np.float32))
    with contextlib.closing(grpcclient.InferenceServerClient(server.address("grpc"))) as client:
        yield lambda: client.infer(model, [given])


if __name__ == "__main__":
    sys.exit(main())

"""The cases that are measured, and the targets for their results."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable

from bench import json_requests
from bench.perf import Load
from bench.repository import CALLS_PER_REQUEST, COMPILER, IDENTITY_SIZES, RESPONSES_PER_REQUEST

PROTOCOLS = ("http", "grpc")
# Four clients keep both cores busy with one instance; more clients only lengthen the queue.
IDENTITY_CLIENTS = 4
# A window must contain many complete requests, and a request of 16 MB takes a tenth of a second.
STRETCH = {"16MB": 3}
COPIES = (1, 20, 100)

LOADS: dict[str, Load] = {
    f"add_sub-{protocol}-{clients}": Load(model="add_sub", protocol=protocol, concurrency=clients)
    for protocol in PROTOCOLS
    for clients in (1, 4, 16)
} | {
    f"identity-{protocol}-{size}": Load(
        model=f"identity_{size}", protocol=protocol, concurrency=IDENTITY_CLIENTS, stretch=STRETCH.get(size, 1)
    )
    for protocol in PROTOCOLS
    for size in IDENTITY_SIZES
}
# For larger tensors more clients only lengthen the queue; at 64 KB, requests also share turns of the event loop.
LOADS["identity-http-64KB-16"] = Load(model="identity_64KB", protocol="http", concurrency=16)
BLS, STREAM, BATCHED, ENSEMBLE = "bls-http", "decoupled-grpc", "dynamic-http-64", "ensemble-http-16"
LOADS |= {
    BATCHED: Load(model="batched", protocol="http", concurrency=64),
    "dynamic-5ms-http-64": Load(model="batched_5ms", protocol="http", concurrency=64),
    "dynamic-grpc-64": Load(model="batched", protocol="grpc", concurrency=64),
    "ensemble-http-4": Load(model="ensemble", protocol="http", concurrency=4),
    ENSEMBLE: Load(model="ensemble", protocol="http", concurrency=16),
    BLS: Load(model="calls", protocol="http", concurrency=1, parts=CALLS_PER_REQUEST),
    STREAM: Load(model="repeat", protocol="grpc", concurrency=1, stretch=2, parts=RESPONSES_PER_REQUEST, streams=True),
}
if COMPILER:
    LOADS |= {
        f"{case}-{protocol}-{clients}": Load(model=model, protocol=protocol, concurrency=clients)
        for case, model in (("native", "native"), ("native-python", "native_python"))
        for protocol in PROTOCOLS
        for clients in (1, 16)
    }
STARTS: dict[str, int] = {f"start-{count}": count for count in COPIES}
ENVIRONMENT_FIRST, ENVIRONMENT_SECOND = "environment-first", "environment-second"
NAMES = (*LOADS, *json_requests.LOADS, *STARTS, ENVIRONMENT_FIRST, ENVIRONMENT_SECOND)


@dataclasses.dataclass(frozen=True)
class Target:
    """A bound for the ratio naiad/Triton of one metric of one case."""

    promise: str
    case: str
    metric: str
    bound: float
    at_least: bool

    @property
    def is_met_by(self) -> Callable[[float], bool]:
        """A function that tells whether a ratio meets the target."""
        compare = operator.ge if self.at_least else operator.le
        return lambda ratio: bool(compare(ratio, self.bound))

    @property
    def bound_text(self) -> str:
        """The bound as text for the report."""
        return f"{'at least' if self.at_least else 'at most'} {self.bound} x"


@dataclasses.dataclass(frozen=True)
class OwnTarget:
    """A bound for the ratio of one metric of two cases, both naiad's."""

    promise: str
    case: str
    beside: str
    metric: str
    at_most: float


TARGETS = (
    Target("HTTP throughput, 16 clients", "add_sub-http-16", "throughput", 1.7, at_least=True),
    Target("HTTP latency (p50), one client", "add_sub-http-1", "p50", 0.7, at_least=False),
    Target("JSON throughput, 16 numbers, 16 clients", "json-http-16", "throughput", 1.5, at_least=True),
    Target("JSON CPU per request, 16 numbers, 16 clients", "json-http-16", "cpu", 0.7, at_least=False),
    Target("JSON latency (p50), 16 numbers, one client", "json-http-1", "p50", 0.7, at_least=False),
    Target("JSON throughput, 1,000 numbers, 16 clients", "json-1000-http-16", "throughput", 1.3, at_least=True),
    Target("JSON throughput, strings, 16 clients", "json-strings-http-16", "throughput", 1.0, at_least=True),
    Target("JSON throughput, generate, 16 clients", "json-generate-http-16", "throughput", 1.0, at_least=True),
    Target("HTTP identity throughput, 64 KB, 16 clients", "identity-http-64KB-16", "throughput", 1.7, at_least=True),
    Target("HTTP identity throughput, 1 MB", "identity-http-1MB", "throughput", 1.7, at_least=True),
    Target("HTTP identity throughput, 16 MB", "identity-http-16MB", "throughput", 1.7, at_least=True),
    Target("call of a model to another (p50)", BLS, "p50", 0.8, at_least=False),
    Target("responses/s of a decoupled model, gRPC", STREAM, "throughput", 1.5, at_least=True),
    Target("dynamic batching, 64 clients", BATCHED, "throughput", 1.5, at_least=True),
    Target("ensemble of three steps, 16 clients", ENSEMBLE, "throughput", 1.2, at_least=True),
    Target("start with 100 models", "start-100", "seconds", 0.5, at_least=False),
    Target("first start with an environment of 360 MB", ENVIRONMENT_FIRST, "seconds", 0.6, at_least=False),
    Target("second start with it", ENVIRONMENT_SECOND, "seconds", 0.1, at_least=False),
    Target("memory (PSS) per idle instance", "start-20", "instance_pss", 1.0, at_least=False),
)
OWN_TARGETS = (
    OwnTarget(
        "HTTP latency (p50) of an echo in C beside one in Python, one client",
        "native-http-1",
        "native-python-http-1",
        "p50",
        1.25,
    ),
)

"""Microseconds of requests whose input and output are a client's own GPU memory, as JSON.

python -m bench.gpu.region PORT SIZE COUNT [MODEL [http|grpc]]
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.gpu.client import HOST, Connection, median
from bench.gpu.driver_facts import DeviceArray, export, extent

_SECONDS = 60


class _Region:
    """An array, and where it is in its allocation, which is what a handle names."""

    def __init__(self, values: Any) -> None:
        self.array = DeviceArray.of(values)
        self.offset = self.array.address - extent(self.array.address)[0]
        self.handle = base64.b64encode(export(self.array.address)).decode()

    def place(self, name: str) -> dict[str, object]:
        """The parameters of a tensor that is there."""
        return {
            "shared_memory_region": name,
            "shared_memory_byte_size": self.array.nbytes,
            "shared_memory_offset": self.offset,
        }


def main() -> int:
    """Register two regions, ask the model again and again, and look at the result."""
    port, size, count = map(int, sys.argv[1:4])
    model, protocol = (sys.argv[4:] + ["echo", "http"][len(sys.argv) - 4 :])[:2]
    values = np.random.default_rng(2).random(size // 4, np.float32)
    regions = {"in": _Region(values), "out": _Region(np.zeros_like(values))}
    times = []
    ask = {"http": _over_http, "grpc": _over_grpc}[protocol]
    with ask(port, model, regions, len(values)) as infer:
        for _ in range(count):
            began = time.perf_counter()
            infer()
            times.append((time.perf_counter() - began) * 1e6)
        right = bool(np.array_equal(regions["out"].array.numpy(), values))
    print(json.dumps({"first_us": round(times[0]), "p50_us": round(median(times[1:])), "right": right}))
    return 0


@contextlib.contextmanager
def _over_http(port: int, model: str, regions: dict[str, _Region], length: int) -> Iterator[Callable[[], object]]:
    with Connection(port, _SECONDS) as connection:
        for name, region in regions.items():
            byte_size = region.offset + region.array.nbytes
            document = {"raw_handle": {"b64": region.handle}, "device_id": 0, "byte_size": byte_size}
            connection.post(f"/v2/cudasharedmemory/region/{name}/register", json.dumps(document).encode())
        described = {"name": "IN", "datatype": "FP32", "shape": [length], "parameters": regions["in"].place("in")}
        wanted = {"name": "OUT", "parameters": regions["out"].place("out")}
        body = json.dumps({"inputs": [described], "outputs": [wanted]}).encode()
        yield lambda: connection.post(f"/v2/models/{model}/infer", body)
        connection.post("/v2/cudasharedmemory/unregister", b"")


@contextlib.contextmanager
def _over_grpc(port: int, model: str, regions: dict[str, _Region], length: int) -> Iterator[Callable[[], object]]:
    from tritonclient import grpc  # not everywhere where there is a GPU

    with grpc.InferenceServerClient(f"{HOST}:{port}") as client:
        for name, region in regions.items():
            client.register_cuda_shared_memory(name, region.handle, 0, region.offset + region.array.nbytes)
        given = grpc.InferInput("IN", [length], "FP32")
        given.set_shared_memory("in", regions["in"].array.nbytes, regions["in"].offset)
        wanted = grpc.InferRequestedOutput("OUT")
        wanted.set_shared_memory("out", regions["out"].array.nbytes, regions["out"].offset)
        yield lambda: client.infer(model, [given], outputs=[wanted], client_timeout=_SECONDS)
        client.unregister_cuda_shared_memory()


if __name__ == "__main__":
    sys.exit(main())

"""Microseconds of requests whose input and output are a client's own GPU memory, as JSON.

python -m bench.gpu.region PORT SIZE COUNT
"""

from __future__ import annotations

import base64
import json
import sys
import time

import numpy as np

from bench.gpu.client import Connection, median
from bench.gpu.driver_facts import DeviceArray, export


def main() -> int:
    """Register two regions, ask the model `echo` again and again, and look at the result."""
    port, size, count = map(int, sys.argv[1:])
    values = np.random.default_rng(2).random(size // 4, np.float32)
    regions = {"in": DeviceArray.of(values), "out": DeviceArray.of(np.zeros_like(values))}
    with Connection(port, 60) as connection:
        for name, array in regions.items():
            handle = base64.b64encode(export(array.address)).decode()
            document = {"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": size}
            connection.post(f"/v2/cudasharedmemory/region/{name}/register", json.dumps(document).encode())
        described = {"name": "IN", "datatype": "FP32", "shape": [size // 4], "parameters": _place("in", size)}
        request = {"inputs": [described], "outputs": [{"name": "OUT", "parameters": _place("out", size)}]}
        body = json.dumps(request).encode()
        times = []
        for _ in range(count):
            began = time.perf_counter()
            connection.post("/v2/models/echo/infer", body)
            times.append((time.perf_counter() - began) * 1e6)
        right = bool(np.array_equal(regions["out"].numpy(), values))
        connection.post("/v2/cudasharedmemory/unregister", b"")
    print(json.dumps({"first_us": round(times[0]), "p50_us": round(median(times[1:])), "right": right}))
    return 0


def _place(region: str, size: int) -> dict[str, object]:
    return {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": 0}


if __name__ == "__main__":
    sys.exit(main())

"""What the driver's calls cost and allow on this machine, as JSON: `python driver_facts.py FRAMEWORK...`.

Run by the interpreter that has the frameworks. The design of tensors in GPU memory rests on these facts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "models"))

import device_arrays
import numpy as np
from device_arrays import DeviceArray, cuda

_U64, _SIZE, _POINTER = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
_IPC_CAPABLE, _ORDINAL, _BUFFER_ID = 10, 9, 7


class Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("content", ctypes.c_ubyte * 64),)


def timed(work: Callable[[], object], count: int = 50) -> float:
    """The median of the microseconds that *work* takes."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    return round(sorted(times)[count // 2], 1)


def attribute(number: int, address: int, kind: Any = ctypes.c_int) -> int:
    """An attribute of a pointer."""
    value = kind()
    cuda("cuPointerGetAttribute", ctypes.byref(value), number, _U64(address))
    return int(value.value)


def extent(address: int) -> tuple[int, int]:
    """Base and size of the allocation that an address is in."""
    base, size = _U64(), _SIZE()
    cuda("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), _U64(address))
    return base.value, size.value


def export(address: int) -> bytes:
    """The handle of the allocation that an address is in."""
    handle = Handle()
    cuda("cuIpcGetMemHandle", ctypes.byref(handle), _U64(extent(address)[0]))
    return bytes(handle.content)


def opened(handle: bytes) -> int:
    """The address of another process's allocation here."""
    address, given = _U64(), Handle.from_buffer_copy(handle)
    cuda("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, ctypes.c_uint(1))
    return address.value


def closed(address: int) -> None:
    """Close what `opened` opened."""
    cuda("cuIpcCloseMemHandle", _U64(address))


def attempt(work: Callable[[], Any]) -> Any:
    """What *work* returns, or the text of what it raises."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the fact is that it fails
        return f"{type(error).__name__}: {error}"[:160]


def costs() -> dict[str, Any]:
    """Microseconds of single calls, and of copies by size."""
    size_of_large = 1 << (26 if used_memory() is not None else 22)  # the stand-in of the tests copies through files
    large = f"{size_of_large >> 20} MiB"
    array = DeviceArray((size_of_large // 4,), np.float32)
    base, size = extent(array.address)
    uuid = (ctypes.c_ubyte * 16)()
    cuda("cuDeviceGetUuid_v2", ctypes.byref(uuid), 0)
    facts: dict[str, Any] = {
        "uuid": bytes(uuid).hex(),
        "cuCtxSynchronize": timed(lambda: cuda("cuCtxSynchronize")),
        "cuStreamSynchronize(legacy)": timed(lambda: cuda("cuStreamSynchronize", _POINTER(1))),
        "pointer attribute": timed(lambda: attribute(_IPC_CAPABLE, array.address)),
        "address range": timed(lambda: extent(array.address)),
        "get handle": timed(lambda: export(array.address)),
        "range is the array": (base == array.address, size == array.nbytes),
        "buffer id": attribute(_BUFFER_ID, array.address, ctypes.c_uint64),
    }
    other = DeviceArray((size_of_large // 4,), np.float32)
    facts[f"{large} on the device"] = timed(
        lambda: (
            cuda("cuMemcpyDtoD_v2", _U64(other.address), _U64(array.address), _SIZE(array.nbytes)),
            cuda("cuCtxSynchronize"),
        ),
        20,
    )
    facts[f"{large} allocated and freed"] = timed(lambda: DeviceArray((size_of_large // 4,), np.float32), 10)
    descriptor = os.memfd_create("facts")
    os.ftruncate(descriptor, size_of_large)
    mapped = mmap.mmap(descriptor, size_of_large)
    host = np.frombuffer(mapped, np.uint8)
    host[:] = 1
    sizes = {"1 KiB": 1 << 10, "16 KiB": 1 << 14, "64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20}
    for name, bytes_ in {**sizes, large: size_of_large}.items():
        count = _SIZE(bytes_)
        rounds = 50 if bytes_ <= 1 << 20 else 10
        facts[f"{name} to the CPU"] = timed(
            lambda n=count: cuda("cuMemcpyDtoH_v2", _POINTER(host.ctypes.data), _U64(array.address), n), rounds
        )
        facts[f"{name} from the CPU"] = timed(
            lambda n=count: cuda("cuMemcpyHtoD_v2", _U64(array.address), _POINTER(host.ctypes.data), n), rounds
        )
    began = time.perf_counter()
    cuda("cuMemHostRegister_v2", _POINTER(host.ctypes.data), _SIZE(size_of_large), 0)
    facts[f"{large} registered"] = round((time.perf_counter() - began) * 1e6)
    whole = _SIZE(size_of_large)
    facts[f"{large} to registered"] = timed(
        lambda: cuda("cuMemcpyDtoH_v2", _POINTER(host.ctypes.data), _U64(array.address), whole), 10
    )
    facts[f"{large} from registered"] = timed(
        lambda: cuda("cuMemcpyHtoD_v2", _U64(array.address), _POINTER(host.ctypes.data), whole), 10
    )
    cuda("cuMemHostUnregister", _POINTER(host.ctypes.data))
    return facts


def importing() -> dict[str, Any]:
    """What another process finds: this one exports, and exits while the other has the memory open."""
    facts: dict[str, Any] = {}
    script = str(Path(__file__).resolve())
    exporter = subprocess.Popen(
        [sys.executable, script, "--export"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert exporter.stdin is not None and exporter.stdout is not None  # noqa: PT018 - for the type checker
    told = json.loads(exporter.stdout.readline())
    facts["first context of a process, ms"] = told["context_ms"]
    facts["memory of a context, MiB"] = told["context_mib"]
    handle = bytes.fromhex(told["handle"])
    began = time.perf_counter()
    address = opened(handle)
    facts["first open"] = round((time.perf_counter() - began) * 1e6)
    facts["second open of the same handle"] = attempt(lambda: hex(opened(handle)))
    facts["IPC attribute of imported memory"] = attempt(lambda: attribute(_IPC_CAPABLE, address))
    facts["handle of imported memory"] = attempt(lambda: export(address).hex() == told["handle"])
    facts["extent of imported memory"] = attempt(lambda: [extent(address)[0] == address, extent(address)[1]])
    facts["ordinal of imported memory"] = attempt(lambda: attribute(_ORDINAL, address))

    def read() -> float:
        copied = np.empty(4, np.float32)
        cuda("cuMemcpyDtoH_v2", _POINTER(copied.ctypes.data), _U64(address), _SIZE(16))
        return float(copied[0])

    facts["value"] = attempt(read)
    second = bytes.fromhex(told["freed"])
    facts["open of freed memory"] = attempt(lambda: hex(opened(second)))
    exporter.stdin.close()
    exporter.wait(20)
    facts["value after the exporter's exit"] = attempt(read)
    facts["close"] = attempt(lambda: timed(lambda: closed(address), 1))
    facts["open after the exporter's exit"] = attempt(lambda: hex(opened(handle)))
    return facts


def exporting() -> None:
    """The other process of `importing`."""
    before = used_memory()
    began = time.perf_counter()
    cuda("cuInit", 0)
    context_ms = round((time.perf_counter() - began) * 1e3)
    array = DeviceArray.of(np.full(1 << 20, 7, np.float32))
    freed = DeviceArray.of(np.full(1 << 20, 8, np.float32))
    handle = export(freed.address)
    del freed
    after = used_memory()
    told = {
        "handle": export(array.address).hex(),
        "freed": handle.hex(),
        "context_ms": context_ms,
        "context_mib": None if before is None or after is None else after - before,
    }
    print(json.dumps(told), flush=True)
    sys.stdin.read()
    os._exit(0)


def used_memory() -> int | None:
    """MiB of the first device in use, by `nvidia-smi`; None without it."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0])
    return None


def pointers(framework: str) -> dict[str, Any]:
    """What the driver says of a framework's memory."""
    if framework == "torch":
        import torch

        kept: Any = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
        facts = described(kept.data_ptr())
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")  # noqa: SLF001 - the only way
        torch.cuda.empty_cache()
        expandable = torch.zeros(1 << 26, dtype=torch.float32, device="cuda")
        facts["expandable segments"] = described(expandable.data_ptr())
        torch.cuda.synchronize()
        facts["cuCtxSynchronize with torch"] = timed(lambda: cuda("cuCtxSynchronize"))
        facts["from_dlpack of torch"] = timed(lambda: kept.__dlpack__(stream=1))
        return facts
    if framework == "jax":
        import jax

        kept = jax.device_put(np.arange(1 << 20, dtype=np.float32), jax.devices("gpu")[0])
        kept.block_until_ready()
        facts = described(kept.unsafe_buffer_pointer())
        facts["__dlpack__(stream=1)"] = attempt(lambda: type(kept.__dlpack__(stream=1)).__name__)
        facts["__dlpack_device__"] = attempt(lambda: list(map(int, kept.__dlpack_device__())))
        return facts
    import cupy

    kept = cupy.arange(1 << 20, dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    return described(kept.data.ptr)


def described(address: int) -> dict[str, Any]:
    """Whether an address can be exported, and how far its allocation reaches."""
    return {
        "IPC attribute": attempt(lambda: attribute(_IPC_CAPABLE, address)),
        "ordinal": attempt(lambda: attribute(_ORDINAL, address)),
        "buffer id": attempt(lambda: attribute(_BUFFER_ID, address, ctypes.c_uint64)),
        "offset and size of the allocation": attempt(lambda: [address - extent(address)[0], extent(address)[1]]),
        "handle": attempt(lambda: len(export(address))),
    }


def main() -> int:
    """Print the facts of the parts that the command line names."""
    if sys.argv[1:] == ["--export"]:
        exporting()
    device_arrays.enter(0)
    for name in sys.argv[1:]:
        work = {"costs": costs, "importing": importing}.get(name)
        print(json.dumps({name: attempt(work if work is not None else lambda n=name: pointers(n))}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # frameworks take seconds to shut down


if __name__ == "__main__":
    sys.exit(main())

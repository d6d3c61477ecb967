"""Tries what guests do with GPU memory, in two processes, and prints what it found as one line of JSON."""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import struct
import sys
from typing import Any

MARK = "naiad-doctor:"
SIZE = 4 << 20


def _devices(driver: Any) -> list[dict[str, Any]]:
    count, number = ctypes.c_int(), ctypes.c_int()
    driver.call("count the GPUs", "cuDeviceGetCount", ctypes.byref(count))
    functions = importlib.import_module("naiad_stub.cuda.driver")
    found = []
    for ordinal in range(count.value):
        readable = []
        for other in range(count.value):
            if other != ordinal and not driver.attempt("cuDeviceCanAccessPeer", ctypes.byref(number), ordinal, other):
                readable += [other] * number.value
        found.append({"uuid": functions.uuid_of(driver, ordinal).hex(), "peers": readable})
    return found


def _attempt(result: dict[str, Any], name: str, work: Any) -> Any:
    """What *work* returns; the text of what it raises, and its code, go to *result*."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the finding is that it fails
        result[name] = {"text": str(error), "code": getattr(error, "code", 0)}
        return None


def _share() -> bytes:
    """UUID and handle of memory of the first GPU."""
    functions = importlib.import_module("naiad_stub.cuda.driver")
    memory = importlib.import_module("naiad_stub.cuda.memory").Allocation(0, SIZE)
    _kept.append(memory)
    handle, device = functions.IpcHandle(), functions.device(0)
    with device as driver:
        driver.call(
            "share memory of GPU 0 with other processes", "cuIpcGetMemHandle", ctypes.byref(handle), memory.address
        )
    return bytes(device.uuid() + bytes(handle))


def _open(shared: bytes) -> None:
    sharing = importlib.import_module("naiad_stub.cuda.sharing")
    opened = sharing.imports.open((shared[:16], shared[16:]), 1)
    sharing.imports.drop(opened)
    sharing.imports.trim()


def _pin() -> None:
    functions = importlib.import_module("naiad_stub.cuda.driver")
    memory = importlib.import_module("naiad_stub.cuda.memory")
    descriptor = os.memfd_create("naiad-doctor")
    os.ftruncate(descriptor, SIZE)
    with functions.device(0) as driver:
        address, keep = memory.address_of(memoryview(mmap.mmap(descriptor, SIZE)))
        _kept.append(keep)
        driver.call("register memory of the CPU", "cuMemHostRegister_v2", address, SIZE, 0)
        driver.call("unregister memory of the CPU", "cuMemHostUnregister", address)


_kept: list[object] = []


def _other_process(given: int, answer: int) -> None:
    """Open the memory whose handle comes from the pipe *given*; the text of an error goes to *answer*."""
    shared = os.read(given, 80)
    result: dict[str, Any] = {}
    if len(shared) == 80:  # noqa: PLR2004 - UUID and handle
        _attempt(result, "sharing", lambda: _open(shared))
    text = json.dumps(result).encode()
    os.write(answer, struct.pack("<I", len(text)) + text)
    os._exit(0)


def main() -> None:
    """Print what was found."""
    request = json.loads(sys.argv[1])
    sys.path.insert(0, request["library"])
    if request["visible"] is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = request["visible"]
    given, asked = os.pipe(), os.pipe()
    child = os.fork()
    if not child:  # before CUDA is initialised, which no forked process could use
        os.close(given[1])
        _other_process(given[0], asked[1])
    result: dict[str, Any] = {"devices": []}
    functions = importlib.import_module("naiad_stub.cuda.driver")
    driver = _attempt(result, "driver", functions.driver)
    if driver is not None:
        version = ctypes.c_int()
        driver.attempt("cuDriverGetVersion", ctypes.byref(version))
        result["version"] = version.value
        result["devices"] = _attempt(result, "driver", lambda: _devices(driver)) or []
    if result["devices"]:
        _attempt(result, "pinning", _pin)
        shared = _attempt(result, "sharing", _share)
        os.write(given[1], shared or b"-")
        (size,) = struct.unpack("<I", os.read(asked[0], 4))
        result.update(json.loads(os.read(asked[0], size)))
    os.close(given[1])
    os.waitpid(child, 0)
    sys.stdout.write(MARK + json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)


main()

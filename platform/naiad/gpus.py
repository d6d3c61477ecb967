"""The NVIDIA GPUs of this machine, asked through the driver's management library (NVML).

NVML and not CUDA: it starts no context, which would take memory of each GPU, and this process may fork afterwards.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

__all__ = ["Gpu", "GpuLibrary", "GpuMeter", "Measurement", "find_gpus", "gpu_memory_of_processes", "visible_gpus"]

_log = logging.getLogger("naiad.gpus")

_LIBRARY = "libnvidia-ml.so.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_UUID_BYTES = 96
_MAX_PROCESSES = 1024
_NOT_AVAILABLE = (1 << 64) - 1
"""NVML's size of a process that the driver does not tell apart, as under Windows and in some containers."""
_MEASURE_SECONDS = 1.0
"""Least time between two measurements: a call of NVML may take milliseconds."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


Measurement: TypeAlias = Mapping[str, float]
"""What was measured of a GPU, by the names of the reference's metrics; what a GPU does not report is missing."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU.

    Attributes:
        uuid: Its UUID, such as `GPU-1b2c...`.
        handle: The library's handle of it.
    """

    uuid: str
    handle: Any = field(default=None, compare=False, repr=False)


class GpuLibrary:
    """The functions of NVML that are used here.

    Args:
        library: The loaded library; a stand-in in tests.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def list(self) -> list[Gpu]:
        """All GPUs of the machine, in the order of the driver; none if the library reports an error."""
        count = ctypes.c_uint()
        if self._library.nvmlInit_v2() or self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        found = []
        for index in range(count.value):
            handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                continue  # for example a GPU that has fallen off the bus
            if self._library.nvmlDeviceGetUUID(handle, uuid, _UUID_BYTES):
                continue
            found.append(Gpu(uuid.value.decode(), handle))
        return found

    def measure(self, gpu: Gpu) -> Measurement:
        """Power in watts, energy in joules since the driver was loaded, memory in bytes, utilization from 0 to 1."""
        measured: dict[str, float] = {}
        utilization, memory = _Utilization(), _Memory()
        if not self._library.nvmlDeviceGetUtilizationRates(gpu.handle, ctypes.byref(utilization)):
            measured["nv_gpu_utilization"] = utilization.gpu / 100
        if not self._library.nvmlDeviceGetMemoryInfo(gpu.handle, ctypes.byref(memory)):
            measured["nv_gpu_memory_total_bytes"] = memory.total
            measured["nv_gpu_memory_used_bytes"] = memory.used
        for name, function, number in (
            ("nv_gpu_power_usage", self._library.nvmlDeviceGetPowerUsage, ctypes.c_uint()),
            ("nv_gpu_power_limit", self._library.nvmlDeviceGetPowerManagementLimit, ctypes.c_uint()),
            ("nv_energy_consumption", self._library.nvmlDeviceGetTotalEnergyConsumption, ctypes.c_ulonglong()),
        ):
            if not function(gpu.handle, ctypes.byref(number)):
                measured[name] = number.value / 1000  # milliwatts, millijoules
        return measured

    def process_memory(self, gpu: Gpu) -> dict[int, int]:
        """Bytes of a GPU's memory by process id; empty if the driver does not say."""
        count = ctypes.c_uint(_MAX_PROCESSES)
        found = (_Process * _MAX_PROCESSES)()
        if self._library.nvmlDeviceGetComputeRunningProcesses_v3(gpu.handle, ctypes.byref(count), found):
            return {}
        return {each.pid: each.used for each in found[: count.value] if each.used != _NOT_AVAILABLE}


class GpuMeter:
    """Measures the GPUs on a thread, when the last measurement is older than a second: the event loop never waits."""

    def __init__(self) -> None:
        self._measured: list[tuple[str, Measurement]] = []
        self._first_energy: dict[str, float] = {}
        self._next = 0.0
        self._thread: threading.Thread | None = None

    def read(self) -> list[tuple[str, Measurement]]:
        """The last measurements by UUID; empty at first. Begins the next one."""
        is_measuring = self._thread is not None and self._thread.is_alive()
        if not is_measuring and time.monotonic() >= self._next:
            self._next = time.monotonic() + _MEASURE_SECONDS
            self._thread = threading.Thread(target=self._measure, name="naiad-gpus", daemon=True)
            self._thread.start()
        return self._measured

    def _measure(self) -> None:
        library, gpus = _loaded()
        if library is None:
            self._next = math.inf
            return
        measured: list[tuple[str, Measurement]] = []
        for gpu in gpus:
            values = dict(library.measure(gpu))
            energy = values.get("nv_energy_consumption")
            if energy is not None:  # the reference's begins at its start
                values["nv_energy_consumption"] = energy - self._first_energy.setdefault(gpu.uuid, energy)
            measured.append((gpu.uuid, values))
        self._measured = measured


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order: a device id is a position in this list, as for CUDA.

    The variable names indices and UUIDs, or beginnings of UUIDs. As in CUDA, the first name that is invalid or repeated
    ends the list.
    """
    text = environ.get(_VISIBLE)
    if text is None:
        return list(gpus)
    found: list[Gpu] = []
    for name in text.split(","):
        gpu = _named(gpus, name.strip())
        if gpu is None or gpu in found:
            break
        found.append(gpu)
    return found


def _named(gpus: Sequence[Gpu], name: str) -> Gpu | None:
    if name.isascii() and name.isdigit():
        return gpus[int(name)] if int(name) < len(gpus) else None
    matching = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
    return matching[0] if len(matching) == 1 else None


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that models may use; none without NVIDIA's driver. Asked once: it takes tens of milliseconds."""
    return _loaded()[1]


def gpu_memory_of_processes() -> dict[int, int]:
    """Bytes of GPU memory by process id, of all GPUs that models may use together. Blocks for milliseconds."""
    library, gpus = _loaded()
    used: dict[int, int] = {}
    if library is None:
        return used
    for gpu in gpus:
        try:
            found = library.process_memory(gpu)
        except AttributeError:  # a driver that is older than this function
            return {}
        for pid, size in found.items():
            used[pid] = used.get(pid, 0) + size
    return used


@cache
def _loaded() -> tuple[GpuLibrary | None, tuple[Gpu, ...]]:
    try:
        library = GpuLibrary(ctypes.CDLL(_LIBRARY))
        found = tuple(visible_gpus(library.list(), os.environ))
    except (OSError, AttributeError) as error:  # no driver, or one that is older than these functions
        _log.debug("no GPUs: %s", error)
        return None, ()
    _log.info("GPUs: %s", ", ".join(f"{index}: {gpu.uuid}" for index, gpu in enumerate(found)) or "none")
    return library, found

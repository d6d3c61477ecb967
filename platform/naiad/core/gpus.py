"""The NVIDIA GPUs of this machine and their MIG devices, asked through the driver's management library (NVML).

NVML and not CUDA: it starts no context, which would take memory of each GPU, and this process may fork afterwards.
Which devices CUDA would use, and in which order, follows NVIDIA's documentation: "CUDA environment variables" in the
CUDA programming guide, and "CUDA device enumeration" in the MIG user guide.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

_log = logging.getLogger("naiad.gpus")

_LIBRARY = "libnvidia-ml.so.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_UUID_BYTES = 96
_RAW_UUID_BYTES = 16
_MAX_PROCESSES = 1024
_NOT_AVAILABLE = (1 << 64) - 1  # NVML's size of a process that the driver does not tell apart, as in some containers
_CUDA_OF_SEVERAL_MIG_DEVICES = 12080
"""The version of CUDA, as NVML writes 12.8, with whose driver (R570) a process can use MIG devices of several GPU
instances, and whole GPUs beside them. With older drivers it uses one MIG device and nothing else."""
_KINDS = _WHOLE, _PART = "GPU-", "MIG-"
_ORDINAL = re.compile(r"\+?(\d+)", re.ASCII)
_MEASURE_SECONDS = 1.0  # least time between two measurements: a call of NVML may take milliseconds


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


Measurement: TypeAlias = Mapping[str, float]  # by the names of the reference's metrics; what is not reported is missing


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG device: a part of a GPU that acts as a separate device."""

    uuid: str
    handle: Any = field(default=None, compare=False, repr=False)
    is_divided: bool = False  # whether the GPU is in MIG mode: CUDA uses its MIG devices in place of it
    parts: tuple[Gpu, ...] = ()
    parent: str = ""  # UUID of a MIG device's GPU; empty for a GPU
    instance: tuple[int, int] = (0, 0)  # the numbers of a MIG device's GPU instance and compute instance


class GpuLibrary:
    """The functions of NVML that are used here."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def list(self) -> list[Gpu]:
        """All GPUs of the machine with their MIG devices, in the driver's order; none if the library fails."""
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
            name = uuid.value.decode()
            is_divided, parts = self._parts(name, handle)
            found.append(Gpu(name, handle, is_divided, parts))
        return found

    def uses_several_mig_devices(self) -> bool:
        version = ctypes.c_int()
        known = self._succeeds("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        return known and version.value >= _CUDA_OF_SEVERAL_MIG_DEVICES

    def _parts(self, parent: str, gpu: ctypes.c_void_p) -> tuple[bool, tuple[Gpu, ...]]:
        """Whether a GPU is in MIG mode, and its MIG devices."""
        count = ctypes.c_uint()
        if not self._succeeds("nvmlDeviceGetMaxMigDeviceCount", gpu, ctypes.byref(count)) or not count.value:
            return False, ()
        found = []
        for index in range(count.value):  # a number without a device is an error of the call
            handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
            group, part = ctypes.c_uint(), ctypes.c_uint()
            if (
                self._succeeds("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index, ctypes.byref(handle))
                and self._succeeds("nvmlDeviceGetUUID", handle, uuid, _UUID_BYTES)
                and self._succeeds("nvmlDeviceGetGpuInstanceId", handle, ctypes.byref(group))
                and self._succeeds("nvmlDeviceGetComputeInstanceId", handle, ctypes.byref(part))
            ):
                numbers = (group.value, part.value)
                found.append(Gpu(uuid.value.decode(), handle, parent=parent, instance=numbers))
        return True, tuple(found)

    def _succeeds(self, function: str, *arguments: Any) -> bool:
        """Call a function that drivers before MIG lack."""
        found = getattr(self._library, function, None)
        return found is not None and not found(*arguments)

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


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str], *, several_mig_devices: bool = True) -> list[Gpu]:
    """The devices that CUDA would use, in its order: a device id is a position in this list.

    CUDA_VISIBLE_DEVICES names positions or beginnings of UUIDs, but not both. The first name that is invalid ends the
    list, and a repeated one empties it. A GPU in MIG mode is replaced by its first MIG device; MIG devices follow all
    whole GPUs in the numbering.
    """
    numbered = _numbered(gpus, several_mig_devices=several_mig_devices)
    text = environ.get(_VISIBLE)
    found = numbered if text is None else _chosen(gpus, numbered, text)
    parts = [gpu for gpu in found if gpu.parent]
    if parts and not several_mig_devices:
        return parts[:1]
    return _one_of_each_instance(found)


def _numbered(gpus: Sequence[Gpu], *, several_mig_devices: bool) -> list[Gpu]:
    """The devices of CUDA without the variable."""
    parts = [part for gpu in gpus for part in (gpu.parts if several_mig_devices else gpu.parts[:1])]
    return [*(gpu for gpu in gpus if not gpu.is_divided), *_one_of_each_instance(parts)]


def _one_of_each_instance(devices: Sequence[Gpu]) -> list[Gpu]:
    """The devices without second compute instances of a GPU instance: a process can use one of them."""
    found: dict[tuple[str, int | str], Gpu] = {}
    for device in devices:
        found.setdefault((device.parent, device.instance[0] if device.parent else device.uuid), device)
    return list(found.values())


def _chosen(gpus: Sequence[Gpu], numbered: Sequence[Gpu], text: str) -> list[Gpu]:
    names = [name.strip() for name in text.split(",")]
    kind = next((kind for kind in _KINDS if names[0].startswith(kind)), "")
    found: list[Gpu] = []
    for name in names:
        gpu = _by_uuid(gpus, name, kind) if kind else _by_position(numbered, name)
        if gpu is None:
            break
        if gpu in found:
            return []
        found.append(gpu)
    return found


def _by_position(numbered: Sequence[Gpu], name: str) -> Gpu | None:
    number = _ORDINAL.match(name)  # CUDA reads as far as there are digits
    position = int(number[1]) if number else len(numbered)
    return numbered[position] if position < len(numbered) else None


def _by_uuid(gpus: Sequence[Gpu], name: str, kind: str) -> Gpu | None:
    if not name.startswith(kind):
        return None
    if kind == _WHOLE:
        matching = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
        found = matching[0] if len(matching) == 1 else None
        return next(iter(found.parts), None) if found is not None and found.is_divided else found
    parts = [part for gpu in gpus for part in gpu.parts if part.uuid.startswith(name) or _is_named(gpu, part, name)]
    return parts[0] if len(parts) == 1 else None


def _is_named(gpu: Gpu, part: Gpu, name: str) -> bool:
    """Whether a name has the older form `MIG-<UUID of the GPU>/<GPU instance>/<compute instance>`."""
    uuid, *numbers = name.removeprefix(_PART).split("/")
    return uuid.startswith(_WHOLE) and gpu.uuid.startswith(uuid) and numbers == list(map(str, part.instance))


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs and MIG devices that models may use; none without NVIDIA's driver.

    Asked once in a process: it takes tens of milliseconds, and several threads load models.
    """
    return _loaded()[1]


def gpu_uuid(device_id: int) -> bytes | None:
    """The UUID of a GPU by its number among those that models may use, as CUDA gives it; None without that GPU."""
    gpus = find_gpus()
    if not 0 <= device_id < len(gpus):
        return None
    try:
        found = bytes.fromhex(gpus[device_id].uuid.partition("-")[2].replace("-", ""))
    except ValueError:
        return None
    return found if len(found) == _RAW_UUID_BYTES else None


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


_loading = threading.Lock()


def _loaded() -> tuple[GpuLibrary | None, tuple[Gpu, ...]]:
    with _loading:  # without it, `cache` calls the function again for a thread that comes before its first result
        return _load()


@cache
def _load() -> tuple[GpuLibrary | None, tuple[Gpu, ...]]:
    try:
        library = GpuLibrary(ctypes.CDLL(_LIBRARY))
        several = library.uses_several_mig_devices()
        found = tuple(visible_gpus(library.list(), os.environ, several_mig_devices=several))
    except (OSError, AttributeError) as error:  # no driver, or one that is older than these functions
        _log.debug("no GPUs: %s", error)
        return None, ()
    _log.info("GPUs: %s", ", ".join(f"{index}: {gpu.uuid}" for index, gpu in enumerate(found)) or "none")
    return library, found

"""Examines NVIDIA's driver: its GPUs, and whether guests can pass tensors in GPU memory to each other.

Two processes try it with the guest's own code, since what a container allows is found out by nothing else.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.gpus import find_gpus
from naiad_operations.doctor.findings import Finding, Severity, note_finding, warning_finding
from naiad_operations.doctor.in_environment import run_with_python

_DRIVER = "libcuda.so.1"
_OUT_OF_MEMORY = 2
_NO_DEVICE = 100
# Inodes of the machine's own namespaces: include/linux/proc_ns.h.
_FIRST_NAMESPACES = {"ipc": "4026531839", "user": "4026531837", "pid": "4026531836"}
_GVISOR = "gVisor"


class Surroundings(NamedTuple):
    """What of the machine this process shares."""

    # The kinds of namespaces (`ipc`, `pid`, `user`) that are not the machine's: those of a container.
    own: tuple[str, ...]
    is_gvisor: bool


def read_surroundings(proc: Path = Path("/proc")) -> Surroundings:
    """What /proc says of this process."""
    own = []
    for kind, first in _FIRST_NAMESPACES.items():
        try:
            name = os.readlink(proc / "self" / "ns" / kind)  # noqa: PTH115 - the link has no target
        except OSError:
            continue
        if name != f"{kind}:[{first}]":
            own.append(kind)
    return Surroundings(tuple(own), _is_gvisor(proc))


def _is_gvisor(proc: Path) -> bool:
    # Its kernel log begins with "Starting gVisor..."; /proc/version of a real kernel names a compiler.
    try:
        version = (proc / "version").read_text()
    except OSError:
        return False
    return _GVISOR in version or ("gcc" not in version and "clang" not in version)


def examine_gpus(library: Path, surroundings: Surroundings | None = None) -> Iterator[Finding]:
    """Findings about the GPUs; none on a machine without NVIDIA's driver."""
    found = surroundings or read_surroundings()
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        gpus = find_gpus()
        if gpus:
            yield warning_finding(
                "gpu-driver",
                f"models cannot use the GPUs of this machine ({len(gpus)}): {_DRIVER} is missing",
                "in a container, let NVIDIA_DRIVER_CAPABILITIES name compute (docker run --gpus all does)",
            )
        return
    path = os.environ.get("LD_LIBRARY_PATH")
    request = {"library": str(library), "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
    try:
        result = run_with_python(Path(sys.executable), "_gpu_script.py", request, Path(path) if path else None)
    except ExecutionEnvironmentError as error:
        yield warning_finding(
            "gpu-driver", f"NVIDIA's driver cannot be examined: {error.message}", "check that `nvidia-smi` works here"
        )
        return
    yield from findings_of(result, found)


def findings_of(result: Mapping[str, Any], surroundings: Surroundings) -> Iterator[Finding]:
    """What the result of the script means."""
    failed = result.get("driver")
    if failed is not None or not result["devices"]:
        text = failed["text"] if failed is not None else "the driver finds no GPU"
        message, _, advice = text.partition("; ")
        # A driver without a GPU is usual on machines that build images: only models on GPUs miss one.
        yield Finding(
            Severity.WARNING if find_gpus() else Severity.NOTE,
            "gpu-driver",
            f"models cannot use a GPU: {message}",
            advice or "check that `nvidia-smi` works here and which devices CUDA_VISIBLE_DEVICES names",
        )
        return
    yield _summary(result, surroundings)
    sharing = result.get("sharing")
    if sharing is not None and sharing["code"] == _OUT_OF_MEMORY:
        yield note_finding(
            "gpu-sharing",
            f"whether models can pass tensors in GPU memory to each other was not found out: {sharing['text']}",
            "examine the machine while its first GPU has some hundred MiB left",
        )
    elif sharing is not None:
        yield warning_finding(
            "gpu-sharing",
            "tensors in GPU memory go through the CPU between models, and clients cannot register CUDA shared "
            f"memory: {sharing['text'].partition(';')[0]}",
            _advice(surroundings),
        )
    if pinning := result.get("pinning"):
        yield note_finding(
            "gpu-pinning",
            f"copies of large tensors between GPU and CPU take three times as long: {pinning['text']}",
            "allow locked memory: `ulimit -l unlimited`, in a container --ulimit memlock=-1",
        )


def _advice(surroundings: Surroundings) -> str:
    if surroundings.is_gvisor:
        return "gVisor does not allow handles of GPU memory for other processes; use the runtime runc (or nvidia)"
    if surroundings.own:
        return (
            "in a container, try --ipc=host, then --privileged; of a MIG device, both processes must use the same one"
        )
    return "use a GPU and a driver with handles of memory for other processes (not WSL, not vGPU without them)"


def _summary(result: Mapping[str, Any], surroundings: Surroundings) -> Finding:
    devices = result["devices"]
    version = result.get("version", 0)
    count = len(devices)
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}" if version else "CUDA"
    names = ", ".join(f"{index}: {each['uuid']}" for index, each in enumerate(devices))
    message = f"{cuda} with {count} GPU{'s' if count > 1 else ''} ({names})"
    apart = [
        f"{index} and {other}"
        for index, each in enumerate(devices)
        for other in range(index + 1, count)
        if other not in each["peers"]
    ]
    if apart:
        message += f"; tensors go through the CPU between the GPUs {', '.join(apart)}, which have no direct access"
    own = [{"ipc": "IPC", "pid": "process numbers", "user": "users"}[kind] for kind in surroundings.own]
    if not own:
        return note_finding("gpu", message, "nothing to do")
    return note_finding(
        "gpu",
        f"{message}; this container has its own {', '.join(own)}",
        "clients outside of it can register CUDA shared memory with --ipc=host, and GPU memory of models is "
        "counted with --pid=host",
    )

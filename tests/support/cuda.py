"""The stand-in for NVIDIA's driver (`cuda_driver.c`): compiled, put into a folder of the test's own, and looked into.

driver = StandInDriver(tmp_path / "cuda")
with ServerProcess(repository, work=tmp_path, environ=driver.environ) as server: ...
assert driver.allocations() == []
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import psutil
from filelock import FileLock
from support.system_packages import require

SOURCE = Path(__file__).with_name("cuda_driver.c")
MANAGEMENT_SOURCE = Path(__file__).with_name("nvml.c")
DEVICE_ARRAYS = Path(__file__).parents[2] / "bench" / "gpu" / "models" / "device_arrays.py"
"""A module for models: arrays in GPU memory without a framework."""
_FLAGS = ("-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")


def _compiled(source: Path, name: str) -> Path:
    compiler = require("cc")
    flags = (*_FLAGS, f"-Wl,-soname,{name}")
    digest = hashlib.sha256(repr((compiler, flags)).encode() + source.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "naiad-tests-cuda"
    folder.mkdir(exist_ok=True)
    library = folder / f"driver-{digest}.so"
    with FileLock(f"{library}.lock"):
        if not library.exists():
            partial = library.with_suffix(".partial")
            subprocess.run([compiler, *flags, "-o", partial, source, "-ldl"], check=True, timeout=60)
            partial.rename(library)
    return library


class StandInDriver:
    """A driver with one device, and what processes have done with it.

    Attributes:
        folder: Its folder, to which the library writes.
        library: The library.
        environ: The variables with which a process finds it.
    """

    def __init__(self, folder: Path, *, devices: int = 1, has_management: bool = False) -> None:
        """With *has_management*, the server finds the devices, too (`nvml.c`)."""
        folder.mkdir()
        self.folder = folder
        self.library = folder / "libcuda.so.1"
        shutil.copy(_compiled(SOURCE, self.library.name), self.library)
        if has_management:
            shutil.copy(_compiled(MANAGEMENT_SOURCE, "libnvidia-ml.so.1"), folder / "libnvidia-ml.so.1")
        (folder / "devices").write_text(str(devices))
        inherited = os.environ.get("LD_LIBRARY_PATH")
        self.environ = {"LD_LIBRARY_PATH": f"{folder}:{inherited}" if inherited else str(folder)}

    def fail(self, function: str, code: int, *, once: bool = False) -> None:
        """Let calls of *function* return *code*: all, or the next one."""
        (self.folder / f"{'once' if once else 'fail'}-{function}").write_text(str(code))

    def mend(self, function: str) -> None:
        """Let calls of *function* succeed again."""
        (self.folder / f"fail-{function}").unlink()

    def limit(self, size: int) -> None:
        """Give each process *size* bytes of device memory."""
        (self.folder / "limit").write_text(str(size))

    def part(self, device: int, other: int) -> None:
        """Let two devices have no direct access to each other."""
        with (self.folder / "apart").open("a") as file:
            file.write(f"{device} {other}\n")

    def allocations(self) -> list[str]:
        """The allocations of processes that still run."""
        return self._marks("memory")

    def opened(self) -> list[str]:
        """The handles that processes which still run have open."""
        return self._marks("opened")

    def pinned(self) -> list[str]:
        """The ranges that processes which still run have registered."""
        return self._marks("pinned")

    def contexts(self) -> list[str]:
        """The contexts of processes that still run."""
        return self._marks("context")

    def calls(self) -> Counter[str]:
        """How often each function has succeeded, in all processes."""
        return Counter(line.split()[1] for line in self._lines())

    def bytes_of(self, function: str) -> list[int]:
        """The sizes that *function* was called with, in order."""
        return [int(line.split()[2]) for line in self._lines() if line.split()[1] == function]

    def client(self) -> ClientDriver:
        """The driver as this process uses it, as a client of a server."""
        return ClientDriver(self)

    def _lines(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def _marks(self, kind: str) -> list[str]:
        names = [path.name for path in self.folder.glob(f"{kind}-*")]
        return sorted(name for name in names if psutil.pid_exists(int(name.split("-")[1])))


class ClientDriver:
    """The driver in this process: memory of a client, which it shares with a server. A context manager."""

    def __init__(self, driver: StandInDriver) -> None:
        self._driver = driver
        # Under a name of its own: this process would find it for `libcuda.so.1` from then on, in other tests, too.
        library = driver.folder / "client-driver.so"
        shutil.copy(_compiled(SOURCE, library.name), library)
        self._library = ctypes.CDLL(str(library))
        self._memories: list[ClientMemory] = []
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def __enter__(self) -> ClientDriver:  # noqa: PYI034 - typing has Self since Python 3.11 only
        return self

    def __exit__(self, *_: object) -> None:
        self.free()
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        for mark in self._driver.folder.glob(f"context-{os.getpid()}-*"):  # the process, and so its context, stays
            mark.unlink()

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver, which must succeed."""
        code = getattr(self._library, name)(*arguments)
        assert code == 0, f"{name} failed with {code}"

    def allocate(self, size: int) -> ClientMemory:
        """Memory of *size* bytes of zeros."""
        made = ClientMemory(self, size)
        self._memories.append(made)
        return made

    def free(self) -> None:
        """Give all of it back."""
        for memory in list(self._memories):
            memory.free()

    def forget(self, memory: ClientMemory) -> None:
        """It is free."""
        self._memories.remove(memory)


class ClientMemory:
    """Memory of a GPU that a client has allocated.

    Attributes:
        handle: What names it to other processes, as base64.
    """

    def __init__(self, driver: ClientDriver, size: int) -> None:
        self._driver = driver
        self._size = size
        self._address = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(size))
        handle = ctypes.create_string_buffer(64)
        driver.call("cuIpcGetMemHandle", handle, self._address)
        self.handle = base64.b64encode(handle.raw)

    def write(self, data: bytes, offset: int = 0) -> None:
        """Copy *data* into it."""
        target = ctypes.c_uint64(self._address.value + offset)
        self._driver.call("cuMemcpyHtoD_v2", target, data, ctypes.c_size_t(len(data)))

    def read(self, size: int, offset: int = 0) -> bytes:
        """*size* bytes of it."""
        found = ctypes.create_string_buffer(size)
        source = ctypes.c_uint64(self._address.value + offset)
        self._driver.call("cuMemcpyDtoH_v2", found, source, ctypes.c_size_t(size))
        return found.raw

    def free(self) -> None:
        """Give it back; it may not be registered any more."""
        self._driver.call("cuMemFree_v2", self._address)
        self._driver.forget(self)

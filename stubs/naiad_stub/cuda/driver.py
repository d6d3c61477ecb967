"""CUDA's driver API by ctypes: `libcuda.so.1`, which each machine with NVIDIA's driver has, and the primary contexts.

The driver API and not the runtime API: every library that a model may use (PyTorch, JAX, CuPy) works on the primary
context of a device, which the driver API gives us as well, whatever runtime they were built with. And a failed call of
the runtime API leaves its error behind, which the next check of another library reports as its own.

A guest that uses no tensor in GPU memory neither imports this module nor loads the library.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from naiad_stub.exceptions import TritonModelException
from naiad_stub.primitives import allocate_lock

LIBRARY = "libcuda.so.1"
LEGACY_STREAM = 1
"""CU_STREAM_LEGACY: the default stream. The driver's synchronous copies are ordered by it. As a number, DLPack's name
for it, too."""

_pointer = ctypes.c_void_p
_address = ctypes.c_uint64
_size = ctypes.c_size_t
_int = ctypes.c_int
_unsigned = ctypes.c_uint


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: names an allocation to other processes."""

    _fields_ = (("data", ctypes.c_byte * 64),)


# The functions in use. cuda.h defines names without a suffix as macros for these versions.
_SIGNATURES: Dict[str, Tuple[Any, ...]] = {
    "cuInit": (_unsigned,),
    "cuDriverGetVersion": (_pointer,),
    "cuGetErrorName": (_int, _pointer),
    "cuDeviceGet": (_pointer, _int),
    "cuDeviceGetCount": (_pointer,),
    "cuDeviceGetUuid_v2": (_pointer, _int),
    "cuDeviceCanAccessPeer": (_pointer, _int, _int),
    "cuDevicePrimaryCtxRetain": (_pointer, _int),
    "cuCtxPushCurrent_v2": (_pointer,),
    "cuCtxPopCurrent_v2": (_pointer,),
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (_pointer,),
    "cuMemAlloc_v2": (_pointer, _size),
    "cuMemFree_v2": (_address,),
    "cuMemGetAddressRange_v2": (_pointer, _pointer, _address),
    "cuMemcpyDtoH_v2": (_pointer, _address, _size),
    "cuMemcpyHtoD_v2": (_address, _pointer, _size),
    "cuMemcpyDtoD_v2": (_address, _address, _size),
    "cuMemcpyPeer": (_address, _pointer, _address, _pointer, _size),
    "cuIpcGetMemHandle": (_pointer, _address),
    "cuIpcOpenMemHandle_v2": (_pointer, IpcHandle, _unsigned),
    "cuIpcCloseMemHandle": (_address,),
    "cuMemHostRegister_v2": (_pointer, _size, _unsigned),
    "cuMemHostUnregister": (_pointer,),
}
_OUT_OF_MEMORY = 2


class CudaError(TritonModelException):
    """A call of the driver failed.

    Attributes:
        code: CUresult.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the device has too little free memory."""
        return self.code == _OUT_OF_MEMORY


class Driver:
    """The loaded library; made by `driver`.

    Raises:
        TritonModelException: If it is missing, or finds no device.
    """

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise TritonModelException(
                f"cannot use a tensor in GPU memory: NVIDIA's driver is missing ({error}); run the server on a machine "
                "with the driver, in a container with access to its GPUs (docker run --gpus all)"
            ) from None
        self._functions: Dict[str, Any] = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = _int
            self._functions[name] = function
        code = self._functions["cuInit"](0)
        if code:
            raise TritonModelException(
                f"cannot use a tensor in GPU memory: cuInit failed with {self.error_name(code)} ({code}); check that "
                "`nvidia-smi` works there and which devices CUDA_VISIBLE_DEVICES names"
            )

    def call(self, purpose: str, name: str, *arguments: Any) -> None:
        """Call a function.

        Args:
            purpose: What fails if the call does, as "copy 16 bytes of GPU memory to the CPU".
            name: The function.
            arguments: Its arguments.

        Raises:
            CudaError: If it fails.
        """
        code = self._functions[name](*arguments)
        if code:
            self._fail(purpose, name, code)

    def attempt(self, name: str, *arguments: Any) -> int:
        """Call a function whose failure is no error; its CUresult."""
        code: int = self._functions[name](*arguments)
        return code

    def error_name(self, code: int) -> str:
        """The name of a CUresult."""
        name = ctypes.c_char_p()
        self._functions["cuGetErrorName"](code, ctypes.byref(name))
        return (name.value or b"an unknown error").decode()

    def _fail(self, purpose: str, name: str, code: int) -> NoReturn:
        advice = "; free memory on the device, or use smaller batches" if code == _OUT_OF_MEMORY else ""
        raise CudaError(f"cannot {purpose}: {name} failed with {self.error_name(code)} ({code}){advice}", code)


class Device:
    """One GPU with its primary context; a context manager that makes it current on this thread.

    Attributes:
        ordinal: Its number in this process.
    """

    __slots__ = ("_context", "_driver", "_uuid", "ordinal")

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.ordinal = ordinal
        self._driver = driver
        self._uuid = b""
        number = _int()
        context = _pointer()
        purpose = f"use GPU {ordinal}"
        driver.call(purpose, "cuDeviceGet", ctypes.byref(number), ordinal)
        # Never released: the libraries of the model use it until the process exits.
        driver.call(purpose, "cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self._context = context

    def __enter__(self) -> Driver:
        self._driver.call(f"use GPU {self.ordinal}", "cuCtxPushCurrent_v2", self._context)
        return self._driver

    def __exit__(self, *_: object) -> None:
        self._driver.attempt("cuCtxPopCurrent_v2", ctypes.byref(_pointer()))

    def attempt(self, name: str, *arguments: Any) -> int:
        """Call a function on this device whose failure is no error, as in a finalizer; its CUresult."""
        code = self._driver.attempt("cuCtxPushCurrent_v2", self._context)
        if not code:
            code = self._driver.attempt(name, *arguments)
            self.__exit__()
        return code

    def uuid(self) -> bytes:
        """The GPU's UUID, 16 bytes: the same in all processes, unlike its number."""
        if not self._uuid:
            self._uuid = uuid_of(self._driver, self.ordinal)
        return self._uuid

    def copy_from(self, other: Device, source: int, target: int, size: int) -> None:
        """Copy *size* bytes of *other* at *source* to *target* here, also where neither has access to the other."""
        with self as driver:
            purpose = f"copy {size} bytes of the memory of GPU {other.ordinal} to GPU {self.ordinal}"
            driver.call(purpose, "cuMemcpyPeer", target, self._context, source, other._context, size)
            driver.call(purpose, "cuStreamSynchronize", LEGACY_STREAM)


def uuid_of(driver: Driver, ordinal: int) -> bytes:
    """The UUID of the GPU that this process knows by that number; of a MIG device, its own."""
    uuid = (ctypes.c_ubyte * 16)()
    number = _int()
    purpose = f"find the UUID of GPU {ordinal}"
    driver.call(purpose, "cuDeviceGet", ctypes.byref(number), ordinal)
    driver.call(purpose, "cuDeviceGetUuid_v2", uuid, number)
    return bytes(uuid)


_lock = allocate_lock()
_loaded: List[Driver] = []
_devices: Dict[int, Device] = {}


def driver() -> Driver:
    """The driver, loaded by the first call."""
    if not _loaded:
        with _lock:
            if not _loaded:
                _loaded.append(Driver())
    return _loaded[0]


def device(ordinal: int) -> Device:
    """The device that this process knows by that number."""
    found: Optional[Device] = _devices.get(ordinal)
    if found is None:
        loaded = driver()
        with _lock:
            found = _devices.get(ordinal) or _devices.setdefault(ordinal, Device(loaded, ordinal))
    return found


def device_by_uuid(uuid: bytes) -> Device:
    """The device with that UUID.

    Raises:
        TritonModelException: If this process does not see it.
    """
    ordinal = _ordinals.get(uuid)
    if ordinal is None:
        loaded = driver()
        _ordinals.update({uuid_of(loaded, number): number for number in range(device_count())})
        ordinal = _ordinals.get(uuid)
    if ordinal is None:
        raise TritonModelException(
            f"cannot use a tensor in the memory of GPU {uuid.hex()}: this model's process does not see that GPU; let "
            "CUDA_VISIBLE_DEVICES name it, or have the tensor copied to the CPU (preferred_memory, "
            "FORCE_CPU_ONLY_INPUT_TENSORS)"
        )
    return device(ordinal)


def device_count() -> int:
    """How many GPUs this process sees."""
    count = _int()
    driver().call("count the GPUs", "cuDeviceGetCount", ctypes.byref(count))
    return count.value


def readable_gpus(own: int) -> List[bytes]:
    """UUIDs of the GPUs whose memory this process can use.

    Args:
        own: The number of the GPU that its model works on: then those are meant that it has direct access to. Less than
            0, or the number of none: all that the process sees.
    """
    loaded = driver()
    count = device_count()
    if count == 1:
        own = 0
    can = _int()
    found = []
    for ordinal in range(count):
        is_other = 0 <= own < count and ordinal != own
        if is_other and (loaded.attempt("cuDeviceCanAccessPeer", ctypes.byref(can), own, ordinal) or not can.value):
            continue
        found.append(uuid_of(loaded, ordinal))
    return found


_ordinals: Dict[bytes, int] = {}

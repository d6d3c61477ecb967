"""Arrays in GPU memory by the driver and DLPack alone, for models that are to need no framework.

Copied beside such models, which then run in any server with a GPU, and in tests without one, where a stand-in takes the
driver's place. Python 3.8 and numpy.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

_pointer = ctypes.c_void_p
_KINDS = {"b": 6, "i": 0, "u": 1, "f": 2}
_LETTERS = {0: "i", 1: "u", 2: "f", 6: "b"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", _pointer),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", _pointer),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", _pointer), ("deleter", _pointer))


_api = ctypes.pythonapi
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, _pointer, ctypes.c_char_p, _pointer)(("PyCapsule_New", _api))
_capsule_pointer = ctypes.PYFUNCTYPE(_pointer, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_capsule_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_Deleter = ctypes.CFUNCTYPE(None, _pointer)

_lent: dict[int, tuple[Any, ...]] = {}
_contexts: dict[int, Any] = {}
_loaded: list[Any] = []
_thread = threading.local()


@_Deleter
def _forget(address: int) -> None:
    _lent.pop(address, None)


def cuda(name: str, *arguments: Any) -> None:
    """Call a function of the driver with the context of device 0, or of the device that was entered last."""
    if not _loaded:
        _loaded.append(ctypes.CDLL("libcuda.so.1"))
        _loaded[0].cuInit(0)
        enter(0)
    code = getattr(_loaded[0], name)(*arguments)
    if code:
        raise RuntimeError(f"{name} failed with {code}")


def enter(ordinal: int) -> None:
    """Make the context of a device current on this thread."""
    if ordinal not in _contexts:
        context = _pointer()
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        _contexts[ordinal] = context
    if getattr(_thread, "ordinal", None) != ordinal:
        cuda("cuCtxPushCurrent_v2", _contexts[ordinal])
        _thread.ordinal = ordinal


class DeviceArray:
    """An array in GPU memory, C order.

    Attributes:
        shape: Its dimensions.
        dtype: Its numpy dtype.
        address: Where it begins.
        ordinal: The device.
        stream: The stream that writes it; None for the default stream.
        asked_streams: The streams that consumers have named.
    """

    def __init__(self, shape: Any, dtype: Any, *, ordinal: int = 0, is_virtual: bool = False) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.ordinal = ordinal
        self.stream: Any = None
        self.asked_streams: list[Any] = []
        self._owner: Any = None
        address = ctypes.c_uint64()
        cuda("cuInit", 0)
        enter(ordinal)
        allocate = "standinAllocateVirtual" if is_virtual else "cuMemAlloc_v2"
        cuda(allocate, ctypes.byref(address), ctypes.c_size_t(max(self.nbytes, 1)))
        self.address: int = address.value
        self._base = address.value

    @classmethod
    def of(cls, array: Any, **options: Any) -> DeviceArray:
        """A copy of a numpy array."""
        array = np.ascontiguousarray(array)
        made = cls(array.shape, array.dtype, **options)
        if array.nbytes:
            cuda(
                "cuMemcpyHtoD_v2",
                ctypes.c_uint64(made.address),
                _pointer(array.ctypes.data),
                ctypes.c_size_t(array.nbytes),
            )
        return made

    @classmethod
    def from_dlpack(cls, given: Any) -> DeviceArray:
        """The array of a capsule, or of an object with `__dlpack__`, in GPU memory."""
        capsule = given if type(given).__name__ == "PyCapsule" else given.__dlpack__()
        address = _capsule_pointer(capsule, b"dltensor")
        managed = _Managed.from_address(address)
        tensor = managed.tensor
        if tensor.device_type != 2:
            raise ValueError(f"the tensor is on a device of type {tensor.device_type}")
        _capsule_rename(capsule, b"used_dltensor")
        made = cls.__new__(cls)
        made.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        made.dtype = np.dtype(f"{_LETTERS[tensor.code]}{tensor.bits // 8}")
        made.address = (tensor.data or 0) + tensor.offset
        made.ordinal = tensor.device_id
        made.stream = None
        made.asked_streams = []
        made._base = 0
        made._owner = _Consumed(address, managed.deleter)
        return made

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> DeviceArray:
        """Some rows, which share the memory."""
        start, stop, _ = rows.indices(self.shape[0])
        part = DeviceArray.__new__(DeviceArray)
        part.__dict__.update(self.__dict__, shape=(stop - start, *self.shape[1:]), _base=0, _owner=self)
        part.address = self.address + start * (self.nbytes // max(self.shape[0], 1))
        return part

    def numpy(self) -> Any:
        """A copy of the elements."""
        copied = np.empty(self.shape, self.dtype)
        if copied.nbytes:
            enter(self.ordinal)
            cuda(
                "cuMemcpyDtoH_v2",
                _pointer(copied.ctypes.data),
                ctypes.c_uint64(self.address),
                ctypes.c_size_t(copied.nbytes),
            )
        return copied

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.ordinal

    def __dlpack__(self, stream: Any = None) -> Any:
        self.asked_streams.append(stream)
        if self.stream is not None and stream not in (None, -1):
            event = _pointer()
            cuda("cuEventCreate", ctypes.byref(event), 2)
            cuda("cuEventRecord", event, self.stream)
            cuda("cuStreamWaitEvent", _pointer(stream), event, 0)
        return self.capsule()

    def capsule(self) -> Any:
        """A DLPack capsule."""
        managed = _Managed()
        sizes = (ctypes.c_int64 * len(self.shape))(*self.shape)
        tensor = managed.tensor
        tensor.data = self.address
        tensor.device_type, tensor.device_id = 2, self.ordinal
        tensor.ndim = len(self.shape)
        tensor.code, tensor.bits, tensor.lanes = _KINDS[self.dtype.kind], self.dtype.itemsize * 8, 1
        tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = ctypes.cast(_forget, _pointer).value
        where = ctypes.addressof(managed)
        _lent[where] = (managed, sizes, self)
        return _capsule_new(where, b"dltensor", None)

    def __del__(self) -> None:
        if getattr(self, "_base", 0):
            enter(self.ordinal)
            cuda("cuMemFree_v2", ctypes.c_uint64(self._base))


class _Consumed:
    """A managed tensor of somebody else; its finalizer calls the deleter."""

    def __init__(self, address: int, deleter: Any) -> None:
        self._address = address
        self._deleter = deleter

    def __del__(self) -> None:
        if self._deleter:
            _Deleter(self._deleter)(self._address)


def lent_count() -> int:
    """How many capsules have not been given back."""
    return len(_lent)

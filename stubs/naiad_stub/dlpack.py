"""DLPack capsules by ctypes: memory shared with torch and other libraries, without a copy and without importing them.

Memory of the CPU is a memoryview here, memory of a GPU a `naiad_stub.cuda.memory.DeviceMemory`.

Imported at the first use only, since ctypes is expensive to import. The capsules are the unversioned ones, which every
library reads.

Who frees what: the capsule owns the managed tensor until a consumer renames it to "used_dltensor"; from then on the
consumer calls its deleter. As a producer this module uses numpy's capsule where numpy can make one, and else keeps
buffer, shape and managed tensor in `_exported` until then. As a consumer it calls the deleter when the last view of the
memory is gone.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple, Union

from naiad_stub.datatypes import BYTES, ITEM_SIZES, Buffer, Shape, element_count
from naiad_stub.exceptions import TritonModelException

if TYPE_CHECKING:
    import numpy as np

    from naiad_stub.cuda.memory import DeviceMemory

_CPU = 1
CUDA = 2
_PINNED = 3
_DEFAULT_STREAM = 1  # in DLPack's numbers for CUDA
_NAME = b"dltensor"
_USED = b"used_dltensor"

# Kinds of DLDataType: int 0, uint 1, float 2, bfloat 4, bool 6.
_TYPES = (
    None,
    *((6, 8), (1, 8), (1, 16), (1, 32), (1, 64), (0, 8), (0, 16), (0, 32), (0, 64), (2, 16), (2, 32), (2, 64)),
    None,
    (4, 16),
)
_CODES = {kind: code for code, kind in enumerate(_TYPES) if kind is not None}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_DLManagedTensor._fields_ = (
    ("dl_tensor", _DLTensor),
    ("manager_ctx", ctypes.c_void_p),
    # A plain pointer: it may be null, and calling one of ours through ctypes must not need a wrapper kept alive.
    ("deleter", ctypes.c_void_p),
)

_api = ctypes.pythonapi
# Our own prototypes: the functions of `pythonapi` are shared by all code in the process, and a capsule that is
# being destroyed must be passed as a pointer, since a reference to it would bring it back to life.
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", _api)
)
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_capsule_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))

_exported: Dict[int, Tuple[Any, ...]] = {}
"""What consumers borrow, by the address of the managed tensor."""


def _forget(address: int, _pop: Any = _exported.pop) -> None:
    """Release the tensor at *address*: its consumer no longer needs it."""
    _pop(address, None)


def _drop_capsule(capsule: int, _valid: Any = _capsule_is_valid, _get: Any = _capsule_pointer) -> None:
    """Release the tensor of a destroyed capsule if no consumer took it."""
    if _valid(capsule, _NAME):
        _forget(_get(capsule, _NAME))


# Consumers may call these until the process exits, after this module's names are deleted: they are never freed.
_forget_c = _Deleter(_forget)
_drop_capsule_c = _Destructor(_drop_capsule)
for _callback in (_forget_c, _drop_capsule_c):
    ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", _api))(_callback)


def to_capsule(code: int, shape: Shape, data: Buffer, owner: object = None) -> Any:
    """A capsule over *data*, the elements of a tensor in C order; it refers to *owner* until its memory is released."""
    kind = _TYPES[code]
    if kind is None:
        raise TritonModelException("DLPack does not have support for string tensors.")
    import numpy as np

    array: np.ndarray[Any, Any] = np.frombuffer(data, np.dtype(f"u{ITEM_SIZES[code]}"))
    if array.flags.writeable and array.nbytes and hasattr(array, "__dlpack__"):
        # An array refers to the object with its memory, and this one may refer to the owner.
        memory = (ctypes.c_ubyte * array.nbytes).from_buffer(data)
        memory.owner = owner  # type: ignore[attr-defined]  # ctypes arrays accept attributes
        return _capsule_of_numpy(np.frombuffer(memoryview(memory), array.dtype).reshape(shape), kind)
    address, keep = _address_of(data)
    return _capsule_of_ours(shape, kind, (_CPU, 0), address, (keep, owner))


def to_device_capsule(code: int, shape: Shape, memory: DeviceMemory, owner: object) -> Any:
    """A capsule over GPU memory; it refers to *owner* until the memory is released."""
    kind = _TYPES[code]
    assert kind is not None, "strings are never in GPU memory"
    return _capsule_of_ours(shape, kind, (CUDA, memory.ordinal), memory.address, (memory, owner))


def _capsule_of_numpy(array: np.ndarray[Any, Any], kind: Tuple[int, int]) -> Any:
    """A capsule that numpy frees.

    Its deleter is C. Consumers such as numpy itself call deleters also while an exception is on its way, and a
    function of Python must not be called then: the exception would be lost.
    """
    capsule = array.__dlpack__()
    managed = _DLManagedTensor.from_address(_capsule_pointer(id(capsule), _NAME))
    managed.dl_tensor.dtype_code, managed.dl_tensor.dtype_bits = kind
    return capsule


def _capsule_of_ours(
    shape: Shape, kind: Tuple[int, int], device: Tuple[int, int], address: Optional[int], keep: object
) -> Any:
    """A capsule that this module frees: over memory that numpy does not lend, or with a numpy older than 1.22.

    Args:
        shape: Of the tensor.
        kind: Its DLDataType.
        device: Its DLDevice.
        address: Of its elements.
        keep: What must live until a consumer has released the memory.
    """
    managed = _DLManagedTensor()
    tensor = managed.dl_tensor
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    tensor.data = address
    tensor.device_type, tensor.device_id = device
    tensor.ndim = len(shape)
    tensor.dtype_code, tensor.dtype_bits = kind
    tensor.dtype_lanes = 1
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_forget_c, ctypes.c_void_p).value
    where = ctypes.addressof(managed)
    _exported[where] = (managed, sizes, keep)
    return _capsule_new(where, _NAME, _drop_capsule_c)


def _address_of(data: Buffer) -> Tuple[Optional[int], Any]:
    """The address of *data*, and an object that keeps it alive."""
    if not len(data):
        return None, None
    # numpy, because ctypes' from_buffer refuses read-only memory.
    import numpy as np

    array: np.ndarray[Any, Any] = np.frombuffer(data, np.uint8)
    return array.ctypes.data, array


class _BorrowedTensor:
    """A managed tensor of another library; its finalizer calls the deleter."""

    __slots__ = ("_address", "_call", "_deleter")

    def __init__(self, address: int, deleter: Optional[int]) -> None:
        self._address = address
        self._deleter = deleter
        self._call = _Deleter

    def __del__(self) -> None:
        if self._deleter:
            self._call(self._deleter)(self._address)


def from_object(obj: Any) -> Tuple[int, Shape, memoryview]:
    """Datatype, shape and memory of a capsule or of an object with `__dlpack__`; the memory keeps its owner alive.

    Raises:
        TritonModelException: If it is not in memory of the CPU, or cannot be a tensor.
    """
    code, shape, memory = _from_object(obj, (_CPU, _PINNED))
    assert isinstance(memory, memoryview)
    return code, shape, memory


def from_object_or_device(obj: Any) -> Tuple[int, Shape, Union[memoryview, DeviceMemory]]:
    """The same, also for memory of a GPU."""
    return _from_object(obj, (_CPU, CUDA, _PINNED))


def _from_object(obj: Any, devices: Tuple[int, ...]) -> Tuple[int, Shape, Union[memoryview, DeviceMemory]]:
    if type(obj).__name__ == "PyCapsule":
        return _from_capsule(obj, devices, is_ordered=False)
    if not (hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__")):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule "
            "or have `__dlpack__` and `__dlpack_device__` attributes"
        )
    kind = int(obj.__dlpack_device__()[0])
    _check_device(kind, devices)
    if kind == CUDA:  # our reads are ordered by the default stream: the object makes that wait for its own
        return _from_capsule(obj.__dlpack__(stream=_DEFAULT_STREAM), devices, is_ordered=True)
    return _from_capsule(obj.__dlpack__(stream=None), devices, is_ordered=False)


def _check_device(kind: int, devices: Tuple[int, ...]) -> None:
    """Refuse memory of other kinds of devices."""
    if kind not in devices:
        raise TritonModelException(f"DLDevice type {kind} is not support by Python backend.")


def _from_capsule(
    capsule: Any, devices: Tuple[int, ...], *, is_ordered: bool
) -> Tuple[int, Shape, Union[memoryview, DeviceMemory]]:
    """Consume *capsule*; *is_ordered* if the default stream of its GPU waits for the work that writes its memory."""
    # id() is the object's address: the capsule itself is held by our caller.
    if not _capsule_is_valid(id(capsule), _NAME):
        raise TritonModelException(
            "Provided tensor is not supported. The DLPack capsule is not named 'dltensor': "
            "it has been consumed before, or it is of a newer version"
        )
    address = _capsule_pointer(id(capsule), _NAME)
    managed = _DLManagedTensor.from_address(address)
    tensor = managed.dl_tensor
    _check_device(tensor.device_type, devices)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    _check_contiguous(tensor, shape)
    code = _CODES.get((tensor.dtype_code, tensor.dtype_bits)) if tensor.dtype_lanes == 1 else None
    if code is None or code == BYTES:
        raise TritonModelException(
            f"DLPack tensor of type code {tensor.dtype_code}, {tensor.dtype_bits} bits and {tensor.dtype_lanes} lanes "
            "has no Triton datatype."
        )
    size = element_count(shape) * ITEM_SIZES[code]
    start = (tensor.data or 0) + tensor.byte_offset
    if tensor.device_type == CUDA:
        from naiad_stub.cuda.driver import device
        from naiad_stub.cuda.memory import DeviceMemory

        device(tensor.device_id)  # a missing driver is an error of this call, not of the response
        _capsule_rename(capsule, _USED)
        lent = _BorrowedTensor(address, managed.deleter)
        return code, shape, DeviceMemory(start, size, tensor.device_id, lent, is_ordered=is_ordered)
    # Renamed last: what is refused above still belongs to the capsule, which then frees it.
    _capsule_rename(capsule, _USED)
    owner = _BorrowedTensor(address, managed.deleter)
    if not size:
        return code, shape, memoryview(b"")
    memory = (ctypes.c_ubyte * size).from_address(start)
    memory.owner = owner  # type: ignore[attr-defined]  # views refer to `memory`, and it refers to the owner
    return code, shape, memoryview(memory).cast("B")


def _check_contiguous(tensor: _DLTensor, shape: Shape) -> None:
    """Refuse anything but C order; where a dimension has one element its stride means nothing."""
    if not tensor.strides or 0 in shape:
        return
    expected = 1
    for i in range(tensor.ndim - 1, -1, -1):
        if shape[i] != 1 and tensor.strides[i] != expected:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        expected *= shape[i]

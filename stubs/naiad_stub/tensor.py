"""Tensors as models see them, and their bytes in shared memory.

A received tensor is a view of the segment, or memory of a GPU. Its numpy array or strings are made by the first
`as_numpy`, because many models read only some of their inputs. A tensor to be sent is an array or memory of a GPU; the
stub copies it once, from the bytes that `_payload` returns or from the GPU.
"""

from __future__ import annotations

import struct
from operator import index
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from naiad_stub import runtime
from naiad_stub.arguments import text
from naiad_stub.datatypes import BF16, BYTES, Buffer, Shape, element_count
from naiad_stub.exceptions import API_MODULE, TritonModelException
from naiad_stub.wire import INLINE_LIMIT

if TYPE_CHECKING:
    from naiad_stub.cuda.memory import DeviceMemory

# Numpy's own names: the guest's byte order is the wire's on every machine we run on.
_NUMPY: Tuple[Any, ...] = (
    None,
    *(np.dtype(n) for n in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "O")),
    None,
)
_CODES: Dict[Any, int] = {dtype: code for code, dtype in enumerate(_NUMPY) if dtype is not None}
_NAME_RULE = "Tensor takes its name as str"
_LENGTH = struct.Struct("<I")
_LONG = 1 << 32
# DLPack's kinds of devices, and the value of `stream` for a consumer that synchronises by itself.
_CPU = 1
_CUDA = 2
_NO_STREAM = -1


def encode_strings(array: np.ndarray[Any, Any]) -> bytes:
    """The elements of an array of objects or of fixed-size bytes in C order, each as `<u32 length><bytes>`."""
    if array.size == 1:  # language models send one with each token
        item = array.item()
        if type(item) is bytes and len(item) < _LONG:
            return _LENGTH.pack(len(item)) + item
    items: List[Any] = array.ravel().tolist()
    if array.dtype.kind == "O" and not {bytes}.issuperset(map(type, items)):
        items = [item if isinstance(item, bytes) else str(item).encode("utf-8") for item in items]
    parts: List[Any] = [b""] * (2 * len(items))
    try:
        parts[::2] = map(_LENGTH.pack, map(len, items))
    except struct.error:
        raise TritonModelException("An element of a BYTES tensor is longer than 4294967295 bytes.") from None
    parts[1::2] = items
    return b"".join(parts)


def decode_strings(data: Buffer, count: int) -> List[bytes]:
    """The *count* elements in *data*; raises if lengths and bytes do not agree."""
    # One copy of everything first: slices of bytes cost half of slices of a memoryview.
    raw = bytes(data)
    end = len(raw)
    unpack = _LENGTH.unpack_from
    strings = []
    stop = 0
    try:
        for _ in range(count):
            start = stop + 4
            stop = start + unpack(raw, stop)[0]
            strings.append(raw[start:stop])
    except struct.error:
        # The data ends in the middle of a length.
        stop = end + 1
    if stop != end:
        problem = "ends early" if stop > end else f"has {end - stop} bytes too many"
        raise TritonModelException(f"A BYTES tensor of {count} elements in {end} bytes {problem}.")
    return strings


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """The array of a list, a scalar or an object with `__array__`; TypeError for any other object."""
    array: np.ndarray[Any, Any] = np.asarray(value)
    if array.dtype.kind == "O" and array.ndim == 0 and not isinstance(value, np.ndarray):
        raise TypeError(f"Tensor takes a numpy array, got {type(value).__name__}")
    return array


def _convertible(name: str, array: np.ndarray[Any, Any]) -> Tuple[int, np.ndarray[Any, Any]]:
    """The datatype of an array whose dtype is not in the table, and the array to send for it."""
    dtype = array.dtype
    if dtype.kind == "S":
        return BYTES, array
    if not dtype.isnative:
        native = dtype.newbyteorder("=")
        code = _CODES.get(native)
        if code is not None:
            return code, array.astype(native)
    cure = "by .astype(object)" if dtype.kind in "UT" else "to one that Triton has, such as float32 or int64"
    raise TritonModelException(
        f"NumPy dtype is not supported. Tensor '{name}' has dtype {dtype}: convert the array {cure}"
    )


class Tensor:
    """A named array going into or coming out of a model.

    Attributes:
        _view: Raw little-endian bytes, if there are any yet; for BYTES the serialised form.
        _array: The numpy array, once it was asked for.
        _place: Where the bytes are if not in the process's own memory: the block of the output segment that `allocate`
            put them in, or memory of a GPU; else None.
    """

    __slots__ = ("__weakref__", "_array", "_code", "_name", "_place", "_shape", "_view")
    __module__ = API_MODULE

    _name: str
    _code: int
    _shape: Shape
    _view: Optional[Buffer]
    _array: Optional[np.ndarray[Any, Any]]
    _place: Union[int, DeviceMemory, None]

    def __init__(self, name: str, array: Any, /) -> None:
        if type(name) is not str:
            name = text(_NAME_RULE, name)
        if type(array) is not np.ndarray:
            array = _as_array(array)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        code = _CODES.get(array.dtype)
        if code is None:
            code, array = _convertible(name, array)
        self._name = name
        self._code = code
        self._shape = array.shape
        self._array = array
        # Strings are serialised now, so that the model may reuse its array of objects for the next response.
        self._view = encode_strings(array) if code == BYTES else None
        self._place = None

    @staticmethod
    def allocate(name: str, shape: Sequence[int], dtype: Any, /) -> Tensor:
        """A tensor whose `as_numpy` is to be written to, in the memory that it is sent from: no copy is made.

        Its elements are uninitialised, like those of `numpy.empty`. The first response with the tensor uses that
        memory; if it is sent again, it is copied. Not part of the reference's API.

        Args:
            name: The name in the model's configuration.
            shape: Sizes of the dimensions.
            dtype: Of numbers or bool; strings have no fixed size.
        """
        numpy_dtype = np.dtype(dtype)
        code = _CODES.get(numpy_dtype)
        if code is None or code == BYTES:
            raise TritonModelException(f"NumPy dtype {numpy_dtype} is not supported by Tensor.allocate.")
        name = text(_NAME_RULE, name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        sizes = tuple(index(size) for size in shape)
        if min(sizes, default=0) < 0:
            raise TritonModelException(f"Tensor.allocate takes sizes of 0 and more, got {list(sizes)}.")
        block, view = runtime.current().allocate(element_count(sizes) * numpy_dtype.itemsize)
        tensor = Tensor._received(name, code, sizes, view)
        tensor._place = block
        return tensor

    @classmethod
    def _received(cls, name: str, code: int, shape: Shape, view: Buffer) -> Tensor:
        """A tensor over raw bytes that the caller has checked against *code* and *shape*."""
        self = cls.__new__(cls)
        self._name = name
        self._code = code
        self._shape = shape
        self._view = view
        self._array = None
        self._place = None
        return self

    @classmethod
    def _on_device(cls, name: str, code: int, shape: Shape, memory: DeviceMemory) -> Tensor:
        """A tensor over GPU memory of the right size."""
        self = cls._received(name, code, shape, b"")
        self._view = None
        self._place = memory
        return self

    def _device_memory(self) -> Optional[DeviceMemory]:
        """The GPU memory that the tensor is in; None if it is in memory of the CPU."""
        place = self._place
        return None if place is None or type(place) is int else place  # type: ignore[return-value]  # mypy knows no `type(...) is`

    def _on_cpu(self) -> Tensor:
        """A copy of a tensor in GPU memory."""
        memory = self._device_memory()
        assert memory is not None
        return Tensor._received(self._name, self._code, self._shape, memory.read())

    def _payload(self) -> Tuple[int, Shape, Buffer, int]:
        """Datatype, shape, the bytes to send as one flat buffer, and their number."""
        view = self._view
        if view is None:
            array = self._array
            if array is None:
                return self._on_cpu()._payload()
            if not array.size:
                view = b""
            else:
                if not array.flags.c_contiguous:
                    array = np.ascontiguousarray(array)
                view = memoryview(array.data).cast("B")
        return self._code, self._shape, view, len(view)

    def _payload_to_copy(self) -> Tuple[int, Shape, Buffer, int]:
        """As `_payload`, for a caller that copies the bytes at once: a copy of few bytes costs less than a view."""
        array = self._array
        if array is None or array.nbytes > INLINE_LIMIT or self._view is not None:
            return self._payload()
        data = array.tobytes()
        return self._code, self._shape, data, len(data)

    def name(self) -> str:
        """The name in the model's configuration."""
        return self._name

    def shape(self) -> List[int]:
        """The sizes of the dimensions; empty for a scalar."""
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The number of the datatype, as in ModelConfig's DataType."""
        return self._code

    def is_cpu(self) -> bool:
        """Whether the bytes are in memory of the CPU; else they are in that of a GPU."""
        return self._device_memory() is None

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """The elements as an array: a writable view of the tensor's memory, or objects of `bytes` for BYTES.

        A tensor in GPU memory is copied by each call, so changes of the array do not change the tensor.
        """
        array = self._array
        if array is None:
            if self._view is None:
                return self._on_cpu().as_numpy()
            array = self._array = self._make_array()
        return array

    def _make_array(self) -> np.ndarray[Any, Any]:
        """The array over the received bytes."""
        code = self._code
        shape = self._shape
        view = self._view
        assert view is not None
        if code == BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        if code != BYTES:
            array: np.ndarray[Any, Any] = np.ndarray(shape, _NUMPY[code], view)
            return array
        count = element_count(shape)
        strings: np.ndarray[Any, Any] = np.empty(count, np.object_)
        strings[:] = decode_strings(view, count)
        return strings.reshape(shape)

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the same memory, which lives as long as the capsule's consumer needs it.

        The capsule and then its consumer refer to this tensor, as in the reference: `sys.getrefcount` shows it.
        """
        from naiad_stub import dlpack

        memory = self._device_memory()
        if memory is not None:
            return dlpack.to_device_capsule(self._code, self._shape, memory, self)
        _, _, view, _ = self._payload()
        return dlpack.to_capsule(self._code, self._shape, view, self)

    def __dlpack__(
        self,
        stream: Any = None,
        *,
        max_version: Any = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A capsule for `from_dlpack` of other libraries.

        *max_version* has no effect, and *stream* none on a CPU. The work that writes GPU memory is complete when this
        returns, so that any stream may read it; with -1, nothing is waited for.
        """
        memory = self._device_memory()
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if memory is None or tuple(dl_device) != (_CPU, 0):
                kind = "CPU" if memory is None else "GPU"
                raise BufferError(
                    f"Tensor {self._name!r} is in {kind} memory and is not moved to DLPack device {dl_device!r}."
                )
            if copy is False:
                raise BufferError(f"Tensor {self._name!r} is in GPU memory and cannot be on the CPU without a copy.")
            return self._on_cpu().to_dlpack()
        if memory is not None:
            if copy:
                memory = memory.copy()
            if stream != _NO_STREAM:
                memory.wait()
            return (
                Tensor._on_device(self._name, self._code, self._shape, memory).to_dlpack() if copy else self.to_dlpack()
            )
        if copy and self._code != BYTES:
            code, shape, view, _ = self._payload()
            return Tensor._received(self._name, code, shape, memoryview(bytearray(view))).to_dlpack()
        return self.to_dlpack()

    def __dlpack_device__(self) -> Tuple[int, int]:
        """(kDLCPU, 0), or (kDLCUDA, the GPU's number in this process)."""
        memory = self._device_memory()
        return (_CPU, 0) if memory is None else (_CUDA, memory.ordinal)

    @staticmethod
    def from_dlpack(name: str, obj: Any, /) -> Tensor:
        """A tensor over the memory of a DLPack capsule, or of anything with `__dlpack__`, without a copy.

        The memory may be that of a GPU. What an object has queued on its stream by now is complete before the tensor is
        read or sent; for a bare capsule, all work of the GPU is waited for then.
        """
        from naiad_stub import dlpack

        name = text(_NAME_RULE, name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        code, shape, memory = dlpack.from_object_or_device(obj)
        if isinstance(memory, memoryview):
            return Tensor._received(name, code, shape, memory)
        return Tensor._on_device(name, code, shape, memory)

"""Tensors of the in-process API: memory with a datatype and a shape, to and from numpy, DLPack and strings."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from naiad_stub import dlpack
from naiad_stub.exceptions import TritonModelException
from naiad_stub.tensor import decode_strings, encode_strings

from naiad.protocol.datatypes import Datatype as DataType
from naiad.protocol.inference import InputTensor, OutputTensor
from naiad_embedded.inprocess.enums import DLDeviceType, MemoryType
from naiad_embedded.inprocess.errors import InvalidArgumentError, UnsupportedError
from naiad_embedded.inprocess.memory import (
    DATATYPES,
    DeviceOrMemoryType,
    MemoryBuffer,
    borrow,
    parse_device_or_memory_type,
)

_TOO_LARGE = 1 << 63
# Values of `__dlpack__(stream=...)` that require no synchronization; memory of the CPU has no streams.
_NO_STREAM = frozenset({None, 0, -1})


@dataclass
class Tensor:
    """A tensor.

    Attributes:
        data_type: Datatype of the elements.
        shape: Sizes of the dimensions.
        memory_buffer: Memory with the elements in C order; each element of BYTES is a 4-byte length and its bytes.
    """

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    @property
    def data_ptr(self) -> int:
        """Address of the memory."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """Type of the memory."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """Number of the memory's device."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """Size of the memory in bytes."""
        return self.memory_buffer.size

    # -- conversions from other types ------------------------------------------------------------------------------

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:
        """A tensor with the memory of an array or tensor of any library, without a copy.

        Raises:
            InvalidArgumentError: If the memory is on a device, or is not contiguous.
        """
        return Tensor(*borrow(obj))

    @staticmethod
    def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
        """A tensor of an array; it shares the array's memory if that is contiguous and little-endian, else has a copy.

        Raises:
            InvalidArgumentError: If no datatype corresponds to the array's.
        """
        if array.dtype.kind in "OSU":
            return _strings(array)
        datatype = DATATYPES.get(array.dtype.newbyteorder("<"))
        if datatype is None:
            raise InvalidArgumentError(
                f"Unsupported Numpy data type. Can't convert {array.dtype} to Triton server data type"
            )
        # `ascontiguousarray` returns one dimension for an array without dimensions.
        in_order = np.ascontiguousarray(array, datatype.numpy).reshape(array.shape)
        return Tensor(*borrow(in_order))

    @staticmethod
    def from_bytes_array(bytes_array: list[str] | list[bytes] | np.ndarray[Any, Any]) -> Tensor:
        """A BYTES tensor of a list (it may be nested) or an array of text or bytes.

        Raises:
            InvalidArgumentError: If an element is neither text nor bytes.
        """
        tensor = Tensor._from_object(bytes_array)
        if tensor.data_type is not DataType.BYTES:
            raise InvalidArgumentError(
                f"Unsupported conversion from {bytes_array} to Triton BYTES Tensor. Got {tensor.data_type!r}"
            )
        return tensor

    @staticmethod
    def from_string_array(string_array: list[str] | np.ndarray[Any, Any]) -> Tensor:
        """As `from_bytes_array`."""
        return Tensor.from_bytes_array(string_array)

    @staticmethod
    def _from_object(obj: Any) -> Tensor:
        """A tensor of a tensor, list, array or object with `__dlpack__`."""
        if isinstance(obj, Tensor):
            return obj
        if isinstance(obj, list):
            return Tensor.from_numpy(_array(obj))
        if isinstance(obj, np.ndarray):
            return Tensor.from_numpy(obj)
        if hasattr(obj, "__dlpack__"):
            return Tensor.from_dlpack(obj)
        raise InvalidArgumentError(
            f"Input type {type(obj)} not supported. Must be one of {[list, np.ndarray]} or the type must support "
            "__dlpack__"
        )

    # -- conversions to other types ---------------------------------------------------------------------------------

    def to_bytes_array(self) -> np.ndarray[Any, Any]:
        """The elements of a BYTES tensor, as an array of bytes objects.

        Raises:
            InvalidArgumentError: If the tensor has another datatype.
        """
        if self.data_type is not DataType.BYTES:
            raise InvalidArgumentError(f"Tensor has data type {self.data_type!r} not {DataType.BYTES!r}")
        array = np.empty(int(np.prod(self.shape, dtype=np.int64)), np.object_)
        try:
            array[:] = decode_strings(self.memory_buffer.view(), len(array))
        except TritonModelException as error:
            raise InvalidArgumentError(str(error)) from None
        in_shape: np.ndarray[Any, Any] = array.reshape(tuple(self.shape))
        return in_shape

    def to_string_array(self) -> np.ndarray[Any, Any]:
        """The elements of a BYTES tensor, decoded as UTF-8, as an array of text."""
        array = self.to_bytes_array()
        if not array.size:
            return array.astype(np.str_)
        texts = np.array([element.decode("utf-8") for element in array.ravel()], np.str_)
        in_shape: np.ndarray[Any, Any] = texts.reshape(array.shape)
        return in_shape

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """The tensor as an array that shares its memory; a BYTES tensor becomes a new array of bytes objects.

        Raises:
            InvalidArgumentError: If numpy has no such datatype (BF16).
        """
        if self.data_type is DataType.BYTES:
            return self.to_bytes_array()
        if self.data_type.numpy is None:
            raise InvalidArgumentError(
                f"cannot convert to numpy: it has no {self.data_type.name}; use DLPack, such as torch.from_dlpack"
            )
        elements = np.frombuffer(self.memory_buffer.view(), self.data_type.numpy)
        array: np.ndarray[Any, Any] = elements.reshape(tuple(self.shape))
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:  # noqa: FBT001 - numpy's
        array = self.to_numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def to_host(self) -> Tensor:
        """The tensor in memory of the CPU."""
        return self.to_device("cpu")

    def to_device(self, device: DeviceOrMemoryType) -> Tensor:
        """This tensor, if its memory is on the device.

        Raises:
            InvalidArgumentError: If the device is unknown.
            UnsupportedError: If the tensor would have to be copied to or from a GPU.
        """
        wanted = parse_device_or_memory_type(device)
        here = (self.memory_type, self.memory_type_id)
        if here == wanted or (self.memory_type is MemoryType.CPU_PINNED and wanted[0] is MemoryType.CPU):
            return self
        raise UnsupportedError(
            f"Conversion from {here} to {wanted} not supported. naiad leaves GPUs to the models: take the tensor there "
            "with the library that uses it, such as torch.from_dlpack(tensor).cuda()"
        )

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if stream not in _NO_STREAM:
            raise UnsupportedError(
                f"DLPack stream synchronization on memory type {self.memory_type!r} and stream {stream} not supported"
            )
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is in memory of the CPU and is not moved to DLPack device {dl_device}")
        if self.data_type is DataType.BYTES:
            raise InvalidArgumentError(
                f"Unsupported Triton server data type. Can't convert {self.data_type!r} to DLPack data type"
            )
        view = self.memory_buffer.view()
        # Version 0 of DLPack has no flag for read-only memory, so consumers may write to what they get.
        data = memoryview(bytearray(view)) if copy or view.readonly else view
        return dlpack.to_capsule(self.data_type, tuple(self.shape), data)

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        kind = DLDeviceType.kDLCUDA if self.memory_type is MemoryType.GPU else DLDeviceType.kDLCPU
        return kind, self.memory_type_id

    # -- conversions to and from tensors of the engine --------------------------------------------------------------

    def _as_input(self, name: str) -> InputTensor:
        if not isinstance(self.data_type, DataType):
            raise TypeError(f"cannot submit input '{name}': its data_type must be a DataType, not {self.data_type!r}")
        try:
            shape = tuple([operator.index(size) for size in self.shape])
        except TypeError:
            shape = (_TOO_LARGE,)
        if any(not -_TOO_LARGE <= size < _TOO_LARGE for size in shape):
            raise TypeError(
                f"cannot submit input '{name}': its shape must be a sequence of integers of 64 bits, not {self.shape!r}"
            )
        return InputTensor(name, self.data_type, shape, self.memory_buffer.view())

    @staticmethod
    def _of_output(output: OutputTensor) -> Tensor:
        data = output.data
        if not isinstance(data, memoryview) or data.readonly:
            # A consumer may write to the memory. Python shares short bytes objects in the whole process.
            data = memoryview(bytearray(data))
        return Tensor(output.datatype, list(output.shape), MemoryBuffer.of_view(data, data))


def _strings(array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.kind == "U":
        array = array.astype(np.object_)
    try:
        data = memoryview(encode_strings(array))
    except TritonModelException as error:
        raise InvalidArgumentError(str(error)) from None
    return Tensor(DataType.BYTES, list(array.shape), MemoryBuffer.of_view(data, data))


def _array(elements: list[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.array(elements)
    except ValueError as error:
        raise InvalidArgumentError(f"cannot convert a list to a tensor: its lists differ in length: {error}") from None

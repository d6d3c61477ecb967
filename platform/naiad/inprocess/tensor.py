"""Tensors of the in-process API: memory with a datatype and a shape, to and from numpy, DLPack and strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from naiad_stub import dlpack
from naiad_stub.exceptions import TritonModelException
from naiad_stub.tensor import decode_strings, encode_strings

from naiad.inprocess.enums import DataType, DLDeviceType, MemoryType
from naiad.inprocess.errors import InvalidArgumentError, UnsupportedError
from naiad.inprocess.memory import DATATYPES, DeviceOrMemoryType, MemoryBuffer, borrow, parse_device_or_memory_type
from naiad.protocol.inference import InputTensor, OutputTensor

__all__ = ["Tensor"]

_OWN_STREAMS = frozenset({None, 0, -1})
"""What a consumer of memory of the CPU may say about streams: that there is none."""


@dataclass
class Tensor:
    """A tensor.

    Attributes:
        data_type: Datatype of its elements.
        shape: Its dimensions.
        memory_buffer: Where its elements are, in C order; strings as `<length><bytes>` each.
    """

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    @property
    def data_ptr(self) -> int:
        """Address of its memory."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """Where its memory is."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """Number of the device its memory is on."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """Bytes of its memory."""
        return self.memory_buffer.size

    # -- from other things ----------------------------------------------------------------------------------------

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:
        """A tensor over the memory of an array or tensor of any library, without a copy.

        Raises:
            InvalidArgumentError: If it has none that the CPU can read, or not in one piece.
        """
        return Tensor(*borrow(obj))

    @staticmethod
    def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
        """A tensor of an array: over its memory where that is as tensors have it, else of a copy.

        Raises:
            InvalidArgumentError: If tensors have no such datatype.
        """
        if array.dtype.kind in "OSU":
            return _strings(array)
        datatype = DATATYPES.get(array.dtype.newbyteorder("<"))
        if datatype is None:
            raise InvalidArgumentError(
                f"Unsupported Numpy data type. Can't convert {array.dtype} to Triton server data type"
            )
        # ascontiguousarray makes one dimension of none.
        in_order = np.ascontiguousarray(array, datatype.numpy).reshape(array.shape)
        return Tensor(*borrow(in_order))

    @staticmethod
    def from_bytes_array(bytes_array: list[str] | list[bytes] | np.ndarray[Any, Any]) -> Tensor:
        """A BYTES tensor of a list, nested or not, or an array of strings or bytes.

        Raises:
            InvalidArgumentError: If it holds anything else.
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
        """A tensor of whatever can be one."""
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

    # -- to other things ------------------------------------------------------------------------------------------

    def to_bytes_array(self) -> np.ndarray[Any, Any]:
        """The elements of a BYTES tensor as an array of bytes objects.

        Raises:
            InvalidArgumentError: If it is of another datatype.
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
        """The elements of a BYTES tensor as an array of text, taken for UTF-8."""
        array = self.to_bytes_array()
        if not array.size:
            return array.astype(np.str_)
        texts = np.array([element.decode("utf-8") for element in array.ravel()], np.str_)
        in_shape: np.ndarray[Any, Any] = texts.reshape(array.shape)
        return in_shape

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """The tensor as an array over the same memory; of a BYTES tensor, an array of bytes objects.

        Raises:
            InvalidArgumentError: If numpy has no such datatype.
        """
        if self.data_type is DataType.BYTES:
            return self.to_bytes_array()
        if self.data_type.numpy is None:
            raise InvalidArgumentError(f"numpy has no {self.data_type.name}: use DLPack, such as torch.from_dlpack")
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
        """The tensor in memory of a device: this tensor where it is there already.

        Raises:
            InvalidArgumentError: If there is no such device.
            UnsupportedError: If it would have to be copied to or from a GPU.
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
        if stream not in _OWN_STREAMS:
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
        # Consumers take capsules for memory they may write to.
        data = memoryview(bytearray(view)) if copy or view.readonly else view
        return dlpack.to_capsule(self.data_type, tuple(self.shape), data)

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        kind = DLDeviceType.kDLCUDA if self.memory_type is MemoryType.GPU else DLDeviceType.kDLCPU
        return kind, self.memory_type_id

    # -- on the way to and from the engine --------------------------------------------------------------------------

    def _as_input(self, name: str) -> InputTensor:
        return InputTensor(name, self.data_type, tuple(self.shape), self.memory_buffer.view())

    @staticmethod
    def _of_output(output: OutputTensor) -> Tensor:
        data = output.data
        if not isinstance(data, memoryview) or data.readonly:
            # Its reader may write to what DLPack gives; short bytes objects are shared by the whole process.
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
        raise InvalidArgumentError(f"a list whose parts differ in length is no tensor: {error}") from None

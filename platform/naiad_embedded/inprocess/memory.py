"""Memory of tensors, borrowed from arrays of any library, and the names of memory types."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from naiad_stub import dlpack
from naiad_stub.exceptions import TritonModelException

from naiad.protocol.datatypes import Datatype as DataType
from naiad_embedded.inprocess.enums import DLDeviceType, MemoryType
from naiad_embedded.inprocess.errors import InvalidArgumentError

DeviceOrMemoryType: TypeAlias = tuple[MemoryType, int] | MemoryType | tuple[DLDeviceType, int] | str

_NOT_CONTIGUOUS = "DLPack tensor is not contiguous"


@dataclass
class MemoryBuffer:
    """Memory that another object owns.

    Attributes:
        data_ptr: Address of the memory.
        memory_type: Type of the memory.
        memory_type_id: Number of the device.
        size: Size in bytes.
        owner: The owner; this reference keeps the memory allocated.
    """

    data_ptr: int
    memory_type: MemoryType
    memory_type_id: int
    size: int
    owner: Any
    _view: memoryview | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def from_dlpack(owner: Any) -> MemoryBuffer:
        """The memory of an array or tensor of any library, without a copy.

        Raises:
            InvalidArgumentError: If the memory is on a device, or is not contiguous.
        """
        return borrow(owner)[2]

    @staticmethod
    def of_view(view: memoryview, owner: Any) -> MemoryBuffer:
        """The memory of a memoryview of bytes."""
        # ctypes gives addresses of writable memory only; numpy accepts read-only views.
        address = np.frombuffer(view, np.uint8).ctypes.data if len(view) else 0
        return MemoryBuffer(address, MemoryType.CPU, 0, len(view), owner, view)

    def view(self) -> memoryview:
        """A memoryview of the bytes.

        Raises:
            InvalidArgumentError: If the memory is on a device.
        """
        if self._view is not None:
            return self._view
        if self.memory_type is MemoryType.GPU:
            raise InvalidArgumentError("memory of a GPU cannot be read here: copy the tensor to the host first")
        if not self.size:
            return memoryview(b"")
        memory = (ctypes.c_ubyte * self.size).from_address(self.data_ptr)
        memory.owner = self.owner  # type: ignore[attr-defined]  # the view keeps `memory` alive, and the new attribute keeps the owner alive
        return memoryview(memory).cast("B")


def borrow(owner: Any) -> tuple[DataType, list[int], MemoryBuffer]:
    """Datatype, shape and memory of an array or tensor of any library, without a copy.

    InvalidArgumentError if the memory is on a device or not contiguous, or the datatype has no equivalent.
    """
    if isinstance(owner, np.ndarray):
        return _borrow_array(owner)
    if not hasattr(owner, "__dlpack__"):
        raise InvalidArgumentError("Object does not support DLpack protocol")
    try:
        code, shape, view = dlpack.from_object(owner)
    except TritonModelException as error:
        if str(error).startswith(_NOT_CONTIGUOUS):
            raise InvalidArgumentError("Only contiguous memory is supported") from None
        raise InvalidArgumentError(f"Object does not support DLPack protocol: {error}") from None
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"Object does not support DLPack protocol: {error}") from error
    return DataType(code), list(shape), MemoryBuffer.of_view(view, owner)


def _borrow_array(array: np.ndarray[Any, Any]) -> tuple[DataType, list[int], MemoryBuffer]:
    """As `borrow`, without DLPack: older versions of numpy export no read-only arrays through DLPack."""
    datatype = DATATYPES.get(array.dtype)
    if datatype is None:
        raise InvalidArgumentError(
            f"Object does not support DLPack protocol: {array.dtype} is not a datatype of tensors in DLPack"
        )
    if not array.flags.c_contiguous:
        raise InvalidArgumentError("Only contiguous memory is supported")
    view = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type] # arrays export buffers
    return datatype, list(array.shape), MemoryBuffer.of_view(view, array)


# Datatypes by numpy dtype; BYTES and BF16 have none.
DATATYPES: dict[np.dtype[Any], DataType] = {
    datatype.numpy: datatype for datatype in DataType if datatype.numpy is not None
}

_BY_DEVICE = {DLDeviceType.kDLCPU: MemoryType.CPU, DLDeviceType.kDLCUDA: MemoryType.GPU}


def parse_device_or_memory_type(place: DeviceOrMemoryType) -> tuple[MemoryType, int]:
    """Memory type and device number of `"cpu"`, `"gpu:0"`, `MemoryType.CPU` or `(DLDeviceType.kDLCPU, 0)`.

    InvalidArgumentError if the memory type is unknown.
    """
    if isinstance(place, MemoryType):
        return place, 0
    if isinstance(place, str):
        return _parse_text(place)
    kind, number = place
    if isinstance(kind, MemoryType):
        return kind, number
    if kind in _BY_DEVICE:
        return _BY_DEVICE[kind], number
    raise InvalidArgumentError(f"Invalid memory type {place}")


def _parse_text(text: str) -> tuple[MemoryType, int]:
    name, colon, number = text.partition(":")
    if colon and not number.isdecimal():
        raise InvalidArgumentError(f"Invalid memory type string {text}")
    if name.upper() not in MemoryType.__members__:
        raise InvalidArgumentError(
            f"Unsupported Memory Type String. Can't convert {name.upper()} to Triton server memory type"
        )
    return MemoryType[name.upper()], int(number or 0)

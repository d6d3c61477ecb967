"""`tritonserver._api._datautils`: tables of datatypes and memory types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from naiad_embedded.inprocess import DataType, DLDeviceType, InvalidArgumentError, MemoryType
from naiad_embedded.inprocess.memory import DATATYPES, DeviceOrMemoryType, parse_device_or_memory_type

__all__ = [
    "DLPACK_DEVICE_TYPE_TO_TRITON_MEMORY_TYPE",
    "NUMPY_TO_TRITON_DTYPE",
    "STRING_TO_TRITON_MEMORY_TYPE",
    "TRITON_MEMORY_TYPE_TO_DLPACK_DEVICE_TYPE",
    "TRITON_TO_NUMPY_DTYPE",
    "CustomKeyErrorDict",
    "DeviceOrMemoryType",
    "parse_device_or_memory_type",
]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class CustomKeyErrorDict(dict[_Key, _Value]):
    """A table whose missing keys are invalid arguments."""

    def __init__(self, from_name: str, to_name: str, entries: Mapping[_Key, _Value]) -> None:
        """A table of *entries*; the names say what the keys and the values are."""
        super().__init__(entries)
        self._names = from_name, to_name

    def __missing__(self, key: Any) -> _Value:
        of, to = self._names
        raise InvalidArgumentError(f"Unsupported {of}. Can't convert {key} to {to}")


STRING_TO_TRITON_MEMORY_TYPE = CustomKeyErrorDict(
    "Memory Type String", "Triton server memory type", dict(MemoryType.__members__)
)
DLPACK_DEVICE_TYPE_TO_TRITON_MEMORY_TYPE = CustomKeyErrorDict(
    "DLPack device type",
    "Triton server memory type",
    {DLDeviceType.kDLCUDA: MemoryType.GPU, DLDeviceType.kDLCPU: MemoryType.CPU},
)
TRITON_MEMORY_TYPE_TO_DLPACK_DEVICE_TYPE = CustomKeyErrorDict(
    "Triton server memory type",
    "DLPack device type",
    {
        MemoryType.CPU: DLDeviceType.kDLCPU,
        MemoryType.CPU_PINNED: DLDeviceType.kDLCPU,
        MemoryType.GPU: DLDeviceType.kDLCUDA,
    },
)
NUMPY_TO_TRITON_DTYPE: CustomKeyErrorDict[type, DataType] = CustomKeyErrorDict(
    "Numpy data type",
    "Triton server data type",
    {
        bool: DataType.BOOL,
        **{array_type.type: datatype for array_type, datatype in DATATYPES.items()},
        np.bytes_: DataType.BYTES,
        np.str_: DataType.BYTES,
        np.object_: DataType.BYTES,
    },
)
TRITON_TO_NUMPY_DTYPE: CustomKeyErrorDict[DataType, type] = CustomKeyErrorDict(
    "Triton data type",
    "Numpy data type",
    {**{datatype: array_type.type for array_type, datatype in DATATYPES.items()}, DataType.BYTES: np.object_},
)

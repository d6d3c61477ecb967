"""`tritonserver._api._tensor`."""

from naiad.inprocess import DataType, MemoryBuffer, MemoryType, Tensor
from naiad.inprocess.memory import DeviceOrMemoryType

__all__ = ["DataType", "DeviceOrMemoryType", "MemoryBuffer", "MemoryType", "Tensor"]

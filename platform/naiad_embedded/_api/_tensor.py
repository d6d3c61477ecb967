"""`tritonserver._api._tensor`."""

from naiad_embedded.inprocess import DataType, MemoryBuffer, MemoryType, Tensor
from naiad_embedded.inprocess.memory import DeviceOrMemoryType

__all__ = ["DataType", "DeviceOrMemoryType", "MemoryBuffer", "MemoryType", "Tensor"]

"""`tritonserver._api._memorybuffer`."""

from naiad.inprocess import DLDeviceType, MemoryBuffer, MemoryType
from naiad.inprocess.memory import DeviceOrMemoryType

__all__ = ["DLDeviceType", "DeviceOrMemoryType", "MemoryBuffer", "MemoryType"]

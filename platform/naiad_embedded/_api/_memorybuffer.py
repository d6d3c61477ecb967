"""`tritonserver._api._memorybuffer`."""

from naiad_embedded.inprocess import DLDeviceType, MemoryBuffer, MemoryType
from naiad_embedded.inprocess.memory import DeviceOrMemoryType

__all__ = ["DLDeviceType", "DeviceOrMemoryType", "MemoryBuffer", "MemoryType"]

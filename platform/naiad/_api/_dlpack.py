"""`tritonserver._api._dlpack`."""

from naiad.inprocess import DLDeviceType

__all__ = ["DLDeviceType"]

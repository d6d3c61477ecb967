"""`tritonserver._api._dlpack`."""

from naiad_embedded.inprocess import DLDeviceType

__all__ = ["DLDeviceType"]

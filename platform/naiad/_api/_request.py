"""`tritonserver._api._request`."""

from naiad.inprocess import DataType, InferenceRequest, MemoryType

__all__ = ["DataType", "InferenceRequest", "MemoryType"]

"""`tritonserver._api._request`."""

from naiad_embedded.inprocess import DataType, InferenceRequest, MemoryType

__all__ = ["DataType", "InferenceRequest", "MemoryType"]

"""`tritonserver._api._response`."""

from naiad.inprocess import AsyncResponseIterator, InferenceResponse, ResponseIterator

__all__ = ["AsyncResponseIterator", "InferenceResponse", "ResponseIterator"]

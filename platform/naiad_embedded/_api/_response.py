"""`tritonserver._api._response`."""

from naiad_embedded.inprocess import AsyncResponseIterator, InferenceResponse, ResponseIterator

__all__ = ["AsyncResponseIterator", "InferenceResponse", "ResponseIterator"]

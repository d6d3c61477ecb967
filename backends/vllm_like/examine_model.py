"""Examines a model of this backend for `naiad doctor`."""

from vllm_like.examine import examine

__all__ = ["examine"]

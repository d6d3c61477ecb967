"""A backend for language models: text in, generated text or embeddings out, with the tensors of Triton's vLLM backend.

A model of this backend is a `model.json` in its version directory. What runs it is an engine, see `vllm_like/engines`.
"""

from vllm_like.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]

"""A backend for language models with the tensors of Triton's vLLM backend: generates text or embeddings from text.

A model of this backend is a `model.json` in its version directory. An engine runs it, see `vllm_like/engines`.
"""

from vllm_like.service import TritonPythonModel

__all__ = ["TritonPythonModel"]

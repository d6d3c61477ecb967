"""The backend `vllm`, named in repositories for Triton's vLLM backend: an alias of `vllm_like`.

A backend named `vllm` in the server's own backend directory takes precedence over this one.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "vllm_like"))

from vllm_like.service import TritonPythonModel

__all__ = ["TritonPythonModel"]

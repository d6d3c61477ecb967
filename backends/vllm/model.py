"""`backend: "vllm"`, as repositories for Triton's vLLM backend say, is `vllm_like` under another name.

A backend directory with a `vllm` of its own goes before this one.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "vllm_like"))

from vllm_like.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]

"""Examines a model of this backend for `naiad doctor`: as a model of `vllm_like`, since this backend is its alias."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "vllm_like"))

from vllm_like.examine import examine

__all__ = ["examine"]

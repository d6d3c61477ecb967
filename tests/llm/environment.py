"""The environment that engines run in: built once for all processes of a test run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.once import once

HERE = Path(__file__).parent
PACKAGES = ("numpy", "xllamacpp==2026.10.11549", "gguf==0.19.0")
_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def make(factory: pytest.TempPathFactory) -> Path:
    """An environment with llama.cpp and with a stand-in for vLLM, and in it `tiny.gguf` and `adapter.gguf`.

    Needs whatever index pip is configured for; without one the tests are skipped.
    """
    return once(factory, "llm-environment", _build)


def _build(root: Path) -> None:
    _run(sys.executable, "-m", "virtualenv", "--quiet", str(root))
    python = str(root / "bin" / "python")
    installed = _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES, check=False)
    if installed.returncode:
        pytest.skip(f"no environment for engines can be built here: {installed.stderr.strip().splitlines()[-1]}")
    site = _run(python, "-c", _SITE).stdout.strip()
    shutil.copytree(HERE / "fake_vllm" / "vllm", Path(site, "vllm"), ignore=shutil.ignore_patterns("__pycache__"))
    _run(python, str(HERE / "tiny_gguf.py"), str(root / "tiny.gguf"), str(root / "adapter.gguf"))


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done

"""The environment that engines run in: built once for all processes of a test run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.once import once
from support.packages import install_packages

HERE = Path(__file__).parent
PACKAGES = ("numpy", "xllamacpp==2026.10.11549", "gguf==0.19.0", "prometheus-client==0.23.1")
_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def make(factory: pytest.TempPathFactory) -> Path:
    """An environment with llama.cpp and with a stand-in for vLLM, and in it `tiny.gguf` and `adapter.gguf`.

    Needs the package index that pip is configured for; without one the tests are skipped.
    """
    return once(factory, "llm-environment", _build)


def _build(root: Path) -> None:
    _run(sys.executable, "-m", "venv", "--without-pip", str(root))
    python = str(root / "bin" / "python")
    site = _run(python, "-c", _SITE).stdout.strip()
    failure = install_packages(python, Path(site), *PACKAGES)
    if failure:
        pytest.skip(f"the environment for engines cannot be built: {failure}")
    shutil.copytree(HERE / "fake_vllm" / "vllm", Path(site, "vllm"), ignore=shutil.ignore_patterns("__pycache__"))
    _run(python, str(HERE / "tiny_gguf.py"), str(root / "tiny.gguf"), str(root / "adapter.gguf"))


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done

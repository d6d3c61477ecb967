"""Model repositories written by tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil

IO = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
CONFIG = f'backend: "python"{IO}'
CODE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
Files = Mapping[str, str | bytes]


def write(folder: Path, files: Files) -> None:
    """Write files by their paths below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def model(code: str = CODE, config: str = CONFIG) -> dict[str, str | bytes]:
    """The files of a model."""
    return {"config.pbtxt": config, "1/model.py": code}


def ensemble(*steps: str, output: str = "TYPE_FP32") -> dict[str, str | bytes]:
    """An ensemble of one tensor from X to Y over models, each with a version after a colon where one is needed."""
    names = ["X", *(f"t{number}" for number in range(1, len(steps))), "Y"]
    text = "".join(
        f'step {{ model_name: "{step.partition(":")[0]}" model_version: {step.partition(":")[2] or -1} '
        f'input_map {{ key: "X" value: "{names[number]}" }} output_map {{ key: "Y" value: "{names[number + 1]}" }} }}\n'
        for number, step in enumerate(steps)
    )
    tensors = IO.replace('"Y" data_type: TYPE_FP32', f'"Y" data_type: {output}')
    return {"config.pbtxt": f'platform: "ensemble"{tensors}ensemble_scheduling {{ {text} }}', "1/.keep": ""}


def parameter(key: str, value: object) -> str:
    """A parameter in a configuration."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def environment(folder: Path, version: str = "") -> Path:
    """A directory that is an environment with the tests' own interpreter, and of their packages numpy and psutil.

    The doctor reads all compiled files of an environment: those of the tests are a gigabyte.
    """
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion = {version}\n")
    for package in (np, psutil):
        source = Path(package.__file__).parents[1]
        for entry in source.glob(f"{package.__name__}*"):
            (site / entry.name).symlink_to(entry)
    return folder

"""Models that a test writes down: their code, their configuration, their files."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

HEAD = "import json, os, sys, threading, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n\n"
ONE_BY_ONE = "def execute(self, requests):\n    return [self.respond(request) for request in requests]\n\n"


def python_model(methods: str) -> str:
    """The code of a model whose class has *methods*; `respond(self, request)` makes the only response to a request."""
    body = textwrap.dedent(methods)
    body = ONE_BY_ONE + body if "def respond(" in body and "def execute(" not in body else body
    return f"{HEAD}class TritonPythonModel:\n{textwrap.indent(body, '    ')}"


def python_config(inputs: str, outputs: str, more: str = "") -> str:
    """The configuration of a model in Python; tensors are `NAME TYPE DIM... [optional]`, separated by commas."""
    return f'backend: "python"\n{tensors("input", inputs)}{tensors("output", outputs)}{more}'


def tensors(kind: str, text: str) -> str:
    """The lines of a configuration for tensors written as in `python_config`."""
    return "".join(_tensor(kind, each) for each in text.split(",") if each)


def parameters(given: Mapping[str, object]) -> str:
    """The lines of a configuration for its parameters."""
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in given.items()
    )


def _tensor(kind: str, text: str) -> str:
    name, datatype, *dims = text.split()
    optional = "optional: true" if dims[-1] == "optional" else ""
    dims = [dim for dim in dims if dim != "optional"]
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [{", ".join(dims)}] {optional} }}\n'


def write_files(repository: Path, name: str, config: str, code: str = "") -> Path:
    """A model with this configuration, and with this code if it has any; returns the folder of its version.

    *code* is the file, or the methods of the model's class alone.
    """
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    if code:
        (version / "model.py").write_text(code if "class TritonPythonModel" in code else python_model(code))
    return version

"""Examines the code of a model, with the interpreter that would run it.

`_code_script.py` runs under that interpreter, which may be another version of Python than ours: only it knows which
syntax it parses and which modules it finds. The script imports nothing of the model.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naiad.config.model.model_config import ModelConfig
from naiad.config.model.parameters import PREWARM
from naiad.engine.serving.compile_plan import input_names, output_names
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.models.resolution.decision import Resolution
from naiad.protocol.datatypes import Datatype
from naiad.protocol.numpy_types import NUMPY_TYPES
from naiad.sources.interpreters.distributions import folder_with_module, package_of, server_search_path
from naiad.sources.interpreters.versions import version_text
from naiad_operations.doctor.findings import Finding, Severity, error_finding, warning_finding
from naiad_operations.doctor.in_environment import run_in_environment

# Modules that the guest provides; the environment need not have them.
_GUEST_MODULES = ("c_python_backend_utils", "triton_python_backend", "naiad_stub")
# By the kind of an import that fails.
_KINDS = {
    "required": (Severity.ERROR, "imports {name}, which is not {place}"),
    "deferred": (Severity.WARNING, "a function imports {name}, which is not {place}"),
    "optional": (Severity.NOTE, "imports {name} if it is installed, and it is not {place}"),
    "elsewhere": (
        Severity.NOTE,
        "imports {name}, which is not {place}; the code changes sys.path, so it may find it elsewhere",
    ),
}
_ADVICE = {
    "syntax": "correct it, or give the model a newer Python if it is written for one",
    "unreadable-code": "save it as UTF-8 text that the server's user may read",
    "no-class": "define class TritonPythonModel with a method execute(self, requests)",
    "no-execute": "define execute(self, requests), which returns one response for each request",
    "arguments": "give it these parameters",
    "generator": "return a list of responses; a decoupled model sends them with request.get_response_sender()",
    "relative-import": "write it without the dot: the backend's folder is on sys.path",
}


def examine_code(
    resolution: Resolution,
    environment: ReadyEnvironment,
    prewarmed: Sequence[str] = (),
    config: ModelConfig | None = None,
) -> Iterator[Finding]:
    """Findings about the code of a version: syntax, class, methods, missing imports, and with *config* tensors."""
    request = {
        "file": str(resolution.model_file),
        "folders": [str(folder) for folder in _folders(resolution)],
        "searched": [str(folder) for folder in _search_path(environment)],
        "known": _GUEST_MODULES,
        "is_package": not resolution.is_shared,
        "modules": list(prewarmed),
    }
    result = run_in_environment(environment, "_code_script.py", request)
    for problem in result["problems"]:
        yield error_finding(
            problem["code"],
            f"Python {version_text(environment.version)}: {problem['message']}"
            if problem["code"] == "syntax"
            else problem["message"],
            _ADVICE[problem["code"]],
            _where(problem),
        )
    if config is not None:
        yield from _examine_tensors(result["tensors"], config)
    for missing in result["missing"]:
        yield _missing_import(missing, environment)
    for name in result["absent"]:
        yield warning_finding(
            "prewarm",
            f"{PREWARM} names {name}, which is not in {environment}, so its instances are not prewarmed",
            f"correct the name, or add {package_of(name) or 'its package'} to the environment",
        )


def _examine_tensors(tensors: Iterable[dict[str, Any]], config: ModelConfig) -> Iterator[Finding]:
    """Where literals of the code contradict the configuration: names of tensors, and datatypes of outputs."""
    inputs, outputs = input_names(config), output_names(config)
    declared = {tensor.name: tensor.datatype for tensor in config.outputs}
    found = set()
    for tensor in tensors:
        name, is_input = tensor["name"], tensor["kind"] == "input"
        names, what = (inputs, "inputs") if is_input else (outputs, "outputs")
        if not names or (what, name) in found:
            continue
        sent, wanted = _datatype_of(tensor["dtype"]), declared.get(name)  # None is unknown
        if name not in names:
            found.add((what, name))
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.55)
            consequence = "so that it never gets one" if is_input else "so that clients do not get it"
            yield warning_finding(
                "unknown-tensor",
                f"the code {'reads the input' if is_input else 'makes the output'} '{name}', which the "
                f"configuration does not have, {consequence}; its {what} are {', '.join(names)}",
                f"{f'correct it to {near[0]}' if near else 'correct it'}, or declare it in config.pbtxt",
                _where(tensor),
            )
        elif (
            not is_input and sent is not None and wanted is not None and wanted is not Datatype.BF16 and sent != wanted
        ):
            found.add((what, name))
            yield warning_finding(
                "datatype",
                f"the code makes the output '{name}' as {sent.config_name}, the configuration declares "
                f"{wanted.config_name}",
                "convert the array with astype, or correct data_type in config.pbtxt",
                _where(tensor),
            )


def _datatype_of(dtype: str) -> Datatype | None:
    if not dtype:
        return None
    try:
        kind = np.dtype(dtype.rstrip("_"))
    except TypeError:
        return None
    if kind.kind in "OSU":
        return Datatype.BYTES
    return next((datatype for datatype, each in NUMPY_TYPES.items() if each == kind), None)


def _folders(resolution: Resolution) -> tuple[Path, ...]:
    """The folders that are appended to `sys.path`: by the guest (`naiad_stub.loader`), and by naiad's own backends."""
    if resolution.is_shared:
        own = resolution.model_file.parents[1] / "saved_models"
        return resolution.model_file.parent, resolution.utils_dir, own
    return resolution.version_dir, resolution.model_dir, resolution.utils_dir


def _search_path(environment: ReadyEnvironment) -> Iterable[Path]:
    """The folders of the server's own search path that its guests import from, as far as this process has the same."""
    return server_search_path(os.environ) if environment.is_host else ()


def _missing_import(missing: dict[str, Any], environment: ReadyEnvironment) -> Finding:
    severity, text = _KINDS[missing["kind"]]
    place = f"at {missing['wanted']}" if missing["wanted"] else f"in {environment}"
    return Finding(
        severity,
        "missing-import" if severity is not Severity.NOTE else "optional-import",
        text.format(name=missing["name"], place=place),
        _advice(missing, environment),
        _where(missing),
    )


def _advice(missing: dict[str, Any], environment: ReadyEnvironment) -> str:
    top = missing["name"].lstrip(".").partition(".")[0]
    if missing["wanted"]:
        return "put that file there, or import it by its right name"
    near = f"correct it to {missing['near']} if it is misspelled; else " if missing["near"] else ""
    if not environment.is_host and (folder := folder_with_module(top, server_search_path(os.environ))) is not None:
        return (
            f"{near}it is in {folder}, which is in PYTHONPATH or the working directory and only models under the "
            "server's own interpreter import from: name that folder in a .pth file of the environment, or put the "
            "module beside model.py"
        )
    package = package_of(top)
    if not package:
        near = near or "put it beside model.py or into a folder of PYTHONPATH if it is code of your own; else "
        package = "the package that has it"
    if environment.is_host:
        return (
            f"{near}add {package} to the model (`naiad add`), install it beside naiad, or name an environment that has "
            "it (EXECUTION_ENV_PATH)"
        )
    return f"{near}add {package} to the environment and pack it again"


def _where(problem: dict[str, Any]) -> str:
    return f"{problem['file']}:{problem['line']}" if problem["line"] else str(problem["file"])

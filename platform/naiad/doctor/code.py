"""Examines the code of a model, with the interpreter that would run it.

`_code_script.py` runs under that interpreter, which may be another version of Python than ours: only it knows which
syntax it parses and which modules it finds. The script imports nothing of the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from naiad.doctor.findings import Finding, Severity
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.interpreters.scripts import run_script
from naiad.interpreters.versions import version_text
from naiad.resolution.decision import Resolution

__all__ = ["examine_code"]

_MARK = "naiad-code:"
_TIME_LIMIT = 60.0
# Modules that the guest provides; the environment need not have them.
_GUEST_MODULES = ("c_python_backend_utils", "triton_python_backend", "naiad_stub")
_SEVERITIES = {"required": Severity.ERROR, "deferred": Severity.WARNING, "optional": Severity.NOTE}
_KINDS = {
    "required": "imports {name}, which is not {place}",
    "deferred": "a function imports {name}, which is not {place}",
    "optional": "imports {name} if it is installed, and it is not {place}",
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
_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "sentence_transformers": "sentence-transformers",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages whose name is not the name of their module."""


def examine_code(resolution: Resolution, environment: ReadyEnvironment) -> Iterator[Finding]:
    """Findings about the code of a model's version: syntax, the class, its methods, missing imports.

    Raises:
        ExecutionEnvironmentError: If the interpreter does not run the script.
    """
    request = {
        "file": str(resolution.model_file),
        "folders": [str(folder) for folder in _folders(resolution)],
        "known": _GUEST_MODULES,
        "is_package": not resolution.is_shared,
    }
    result = run_script(
        environment.python,
        Path(__file__).with_name("_code_script.py"),
        mark=_MARK,
        options=("-E", "-B") if environment.user_site else ("-I", "-B"),
        arguments=[json.dumps(request)],
        library_path=environment.library_path,
        time_limit=_TIME_LIMIT,
    )
    for problem in result["problems"]:
        yield Finding(
            severity=Severity.ERROR,
            code=problem["code"],
            message=f"Python {version_text(environment.version)}: {problem['message']}"
            if problem["code"] == "syntax"
            else problem["message"],
            advice=_ADVICE[problem["code"]],
            where=_where(problem),
        )
    for missing in result["missing"]:
        yield _missing_import(missing, environment)


def _folders(resolution: Resolution) -> tuple[Path, ...]:
    """The folders that the guest appends to `sys.path` (`naiad_stub.loader`)."""
    if resolution.is_shared:
        return resolution.model_file.parent, resolution.utils_dir
    return resolution.version_dir, resolution.model_dir, resolution.utils_dir


def _missing_import(missing: dict[str, Any], environment: ReadyEnvironment) -> Finding:
    name, kind = missing["name"], missing["kind"]
    return Finding(
        severity=_SEVERITIES[kind],
        code="missing-import" if kind != "optional" else "optional-import",
        message=_KINDS[kind].format(name=name, place=_place(missing, environment)),
        advice=_advice(missing, environment),
        where=_where(missing),
    )


def _place(missing: dict[str, Any], environment: ReadyEnvironment) -> str:
    return f"at {missing['wanted']}" if missing["wanted"] else f"in {environment}"


def _advice(missing: dict[str, Any], environment: ReadyEnvironment) -> str:
    top = missing["name"].lstrip(".").partition(".")[0]
    if missing["wanted"]:
        return "put that file there, or import it by its right name"
    near = f"correct it to {missing['near']} if it is misspelled; else " if missing["near"] else ""
    package = _PACKAGES.get(top, top)
    if environment.is_host:
        return f"{near}install {package} beside naiad, or name an environment that has it (EXECUTION_ENV_PATH)"
    return f"{near}add {package} to the environment and pack it again"


def _where(problem: dict[str, Any]) -> str:
    return f"{problem['file']}:{problem['line']}" if problem["line"] else str(problem["file"])

"""Runs a script of the doctor with the interpreter of a model, which may be another version of Python than ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.environments.ready_environment import ReadyEnvironment
from naiad.sources.interpreters.scripts import run_script

_MARK = "naiad-doctor:"
# Seconds. Two contexts of a GPU take one or two each, and more while a machine with many GPUs wakes up.
_TIME_LIMIT = 60.0


def run_in_environment(environment: ReadyEnvironment, script: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object that a script of this folder prints; the interpreter is isolated as far as guests are."""
    options = ("-E", "-B") if environment.user_site else ("-I", "-B")
    return run_with_python(environment.python, script, request, environment.library_path, options)


def run_with_python(
    python: Path,
    script: str,
    request: Mapping[str, Any],
    library_path: Path | None,
    options: Sequence[str] = ("-I", "-B"),
) -> dict[str, Any]:
    """The JSON object that a script of this folder prints with this interpreter."""
    return run_script(
        python,
        Path(__file__).with_name(script),
        mark=_MARK,
        options=options,
        arguments=[json.dumps(request)],
        library_path=library_path,
        time_limit=_TIME_LIMIT,
    )

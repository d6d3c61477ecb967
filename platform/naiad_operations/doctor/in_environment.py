"""Runs a script of the doctor with the interpreter of a model, which may be another version of Python than ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.environments.ready_environment import ReadyEnvironment
from naiad.sources.interpreters.scripts import run_script

_MARK = "naiad-doctor:"
_TIME_LIMIT = 60.0


def run_in_environment(environment: ReadyEnvironment, script: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object that a script of this folder prints; the interpreter is isolated as far as guests are."""
    return run_script(
        environment.python,
        Path(__file__).with_name(script),
        mark=_MARK,
        options=("-E", "-B") if environment.user_site else ("-I", "-B"),
        arguments=[json.dumps(request)],
        library_path=environment.library_path,
        time_limit=_TIME_LIMIT,
    )

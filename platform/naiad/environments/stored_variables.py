"""The variables that conda, packages and recipes have stored in an environment, for when it is activated."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.foreign_json import read_json

_UNSET = "***unset***"  # the value by which conda says in `conda-meta/state` that a variable is to be removed


def stored_variables(prefix: Path) -> dict[str, str | None]:
    """The variables that conda or the recipe stored; ExecutionEnvironmentError for a malformed file or name."""
    found: dict[str, str | None] = {}
    for file in sorted(_files(prefix / "etc/conda/env_vars.d", ".json")):
        found.update(_stored_variables(file, _object_in(file)))
    state = prefix / "conda-meta" / "state"
    own = _object_in(state).get("env_vars")
    return {**found, **_stored_variables(state, own if isinstance(own, dict) else {})}


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    try:
        with os.scandir(folder) as found:
            yield from (Path(entry.path) for entry in found if entry.name.endswith(suffix) and entry.is_file())
    except OSError:
        return


def _object_in(file: Path) -> dict[str, Any]:
    if file.exists() and not file.is_file():  # a pipe or a device: a read of it may never end
        raise ExecutionEnvironmentError(
            f"cannot read the variables in {file}: it is not a regular file; conda cannot read it either: remove it"
        )
    try:
        value = read_json(file.read_bytes())
        why = "" if isinstance(value, dict) else "it is not an object"
    except OSError:
        return {}
    except ValueError as error:
        value, why = {}, str(error)
    if why:
        raise ExecutionEnvironmentError(
            f"cannot read the variables in {file}: malformed JSON: {why}; conda cannot read it either: "
            "mend or remove it"
        )
    found: dict[str, Any] = value
    return found


def _stored_variables(file: Path, variables: Mapping[str, Any]) -> dict[str, str | None]:
    for name, value in variables.items():
        if not name or "=" in name or not all(map(_is_passable, (name, str(value)))):
            raise ExecutionEnvironmentError(
                f"cannot use the variable {name!r} in {file}: a name must not be empty or have '=', and neither name "
                "nor value may have NUL or half a surrogate pair; change or remove it"
            )
    return {name: None if value == _UNSET else str(value) for name, value in variables.items()}


def _is_passable(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False

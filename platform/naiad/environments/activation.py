"""Activation of conda environments: the variables that `conda activate` would set, found once and kept.

conda sets variables from `etc/conda/env_vars.d/*.json` and `conda-meta/state`, and then runs the scripts in
`etc/conda/activate.d`. naiad runs these scripts once, when an environment becomes ready, and keeps what they do to the
variables. A guest starts with that; no shell is started for it.

The scripts begin with few variables, so that servers that share the result get the same, and with those that they
name, as guests inherit them: `${X:-own}` and `own:$X` mean the server's X. It counts where these values are the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.foreign_json import read_json
from naiad.core.quantities import counted
from naiad.environments.activation_scripts import SCRIPTS_FOLDER, activation_scripts, run_scripts, sorted_files

_log = logging.getLogger("naiad.environments")

RECORD_NAME = "activation.json"
_FORMAT = 2
_PREFIX_MARK = "\0prefix\0"  # stands for the environment's folder in records, so that a store may be moved
_ALWAYS_GIVEN = ("HOME", "USER", "LOGNAME", "TZ", "TMPDIR", "PATH", "LD_LIBRARY_PATH")
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
# Variables of the shell itself.
_IGNORED = re.compile("_|SHLVL|PWD|OLDPWD|PS[1-4]|IFS|BASH.*|SHELL|SHELLOPTS|COLUMNS|LINES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What activating an environment does to variables."""

    # Variables of `env_vars.d` and `conda-meta/state`; None to remove one.
    fixed: Mapping[str, str | None] = field(default_factory=dict)
    # Variables that the scripts set; None for those that they remove.
    changes: Mapping[str, str | None] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # scripts that failed, and effects that guests do not get, as sentences

    @property
    def names(self) -> list[str]:
        return sorted({*self.fixed, *self.changes})

    def __str__(self) -> str:
        if not self.scripts and not self.fixed:
            return "nothing"
        what = (
            counted(len(self.scripts), "script") + f" of {SCRIPTS_FOLDER}"
            if self.scripts
            else "the environment's files"
        )
        return f"{what}: {', '.join(self.names) or 'no variables'}"

    def apply(self, environ: dict[str, str]) -> None:
        for name, value in {**self.fixed, **self.changes}.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value


NOT_ACTIVATED = Activation()  # the activation of an environment that conda would do nothing for


def activate(prefix: Path, record: Path, inherited: Mapping[str, str], where: str) -> Activation:
    """The activation of an environment. Runs its scripts, if there are any and *record* has no result of them."""
    stored = Activation(fixed=stored_variables(prefix))
    scripts = activation_scripts(prefix)
    if not scripts:
        return stored if stored.fixed else NOT_ACTIVATED
    stored = replace(stored, scripts=tuple(path.name for path in scripts))
    base, key = _beginning(prefix, stored, inherited)
    known = _read(record, key, prefix)
    if known is not None:
        return replace(stored, changes=known[0], problems=known[1])
    after, problems = run_scripts(scripts, base)
    names = [name for name in {**base, **after} if not _IGNORED.fullmatch(name)]
    changes = {name: after.get(name) for name in names if base.get(name) != after.get(name)}
    found = replace(stored, changes=changes, problems=problems)
    _log.info("activated %s by %s", where, found)
    content = {"key": key, "changes": found.changes, "problems": found.problems}
    try:
        json_cache.write(record, json.loads(_unplaced(content, prefix)))
    except OSError as error:
        _log.debug("cannot keep the activation of %s: %s", prefix, error)
    return found


class Activations:
    """The activations of the environments that a server uses. Methods are thread-safe."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "activations"
        # Models that share an environment load concurrently; the lock makes one of them run its scripts.
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
        self._known: dict[Path, tuple[str, Activation]] = {}

    def find(self, prefix: Path, inherited: Mapping[str, str], where: str, entry: Path | None = None) -> Activation:
        """The activation of an environment, whose result is kept in its *entry* of the store if it has one."""
        record = entry / RECORD_NAME if entry is not None else self._folder / json_cache.name_for(str(prefix))
        with self._locks[prefix]:
            _, key = _beginning(prefix, Activation(fixed=stored_variables(prefix)), inherited)
            before, known = self._known.get(prefix, ("", NOT_ACTIVATED))
            if before == key:  # also where the store is read-only and has no record
                return known
            found = activate(prefix, record, inherited, where)
            for problem in found.problems:
                _log.warning("%s: %s", where, problem)
            self._known[prefix] = key, found
            return found


def _beginning(prefix: Path, stored: Activation, inherited: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables that scripts begin with, and a digest of all that their result depends on."""
    scripts = {path.name: _content(path) for path in activation_scripts(prefix)}
    named = {name.decode() for text in scripts.values() for name in _NAME.findall(text)}
    given = {
        name: inherited[name] for name in {*_ALWAYS_GIVEN, *named} & inherited.keys() if not _IGNORED.fullmatch(name)
    }
    base = {
        "LANG": "C.UTF-8",
        **given,
        "CONDA_PREFIX": str(prefix),
        "CONDA_DEFAULT_ENV": str(prefix),
        "CONDA_SHLVL": "1",
    }
    stored.apply(base)
    texts = sorted((name, hashlib.sha256(text).hexdigest()) for name, text in scripts.items())
    values = sorted((name, base[name]) for name in named & base.keys())
    # A digest, because other users may read records, and the values may be secret.
    return base, hashlib.sha256(_unplaced([_FORMAT, stored.fixed, texts, values], prefix).encode()).hexdigest()


def _content(script: Path) -> bytes:
    try:
        return script.read_bytes()
    except OSError:
        return b""  # running it fails, which is a warning


def _read(record: Path, key: str, prefix: Path) -> tuple[dict[str, str | None], tuple[str, ...]] | None:
    known = json_cache.read(record)
    if known is None or known.get("key") != key:
        return None
    placed = json.loads(json.dumps(known).replace(_in_json(_PREFIX_MARK), _in_json(str(prefix))))
    try:
        return dict(placed["changes"]), tuple(placed["problems"])
    except (KeyError, TypeError, ValueError):
        return None


def _unplaced(value: object, prefix: Path) -> str:
    """A value as JSON, with a mark in place of the environment's folder."""
    return json.dumps(value).replace(_in_json(str(prefix)), _in_json(_PREFIX_MARK))


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


_UNSET = "***unset***"  # the value by which conda says in `conda-meta/state` that a variable is to be removed


def stored_variables(prefix: Path) -> dict[str, str | None]:
    """The variables that conda or the recipe stored; ExecutionEnvironmentError for a malformed file or name."""
    found: dict[str, str | None] = {}
    for file in sorted_files(prefix / "etc/conda/env_vars.d", ".json"):
        found.update(_stored_variables(file, _object_in(file)))
    state = prefix / "conda-meta" / "state"
    own = _object_in(state).get("env_vars")
    return {**found, **_stored_variables(state, own if isinstance(own, dict) else {})}


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

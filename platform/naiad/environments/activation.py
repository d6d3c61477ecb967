"""Activation of conda environments: the variables that `conda activate` would set, found once and kept.

conda sets variables from `etc/conda/env_vars.d/*.json` and `conda-meta/state`, and then runs the scripts in
`etc/conda/activate.d`. naiad runs these scripts once, when an environment becomes ready, and keeps the difference that
they make to the variables. A guest starts with that difference; no shell is started for it.

The scripts run twice. The second time, each variable that the first run has set holds a mark. Where the mark is left as
it is, a script only provides a default; where it is part of the new value, a script extends the value that it finds.
The values of the server's own variables are put in place of the mark when a guest starts.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from naiad.core import json_cache
from naiad.core.child_processes import ended_with_group, kill_group
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.foreign_json import read_json
from naiad.core.quantities import counted

__all__ = ["NOT_ACTIVATED", "RECORD_NAME", "Activation", "Activations", "activate", "activation_scripts"]

_log = logging.getLogger("naiad.environments")

RECORD_NAME = "activation.json"
_FORMAT = 1
TIME_LIMIT = 60.0
"""Seconds that all scripts of an environment may take together."""
_SCRIPTS = "etc/conda/activate.d"
_UNSET = "***unset***"
"""The value by which conda says in `conda-meta/state` that a variable is to be removed."""
_MARK = "/naiad-inherited"
"""Stands for the value that a script finds. A path, because most values that scripts extend are lists of folders."""
_PREFIX_MARK = "\0prefix\0"
"""Stands for the environment's folder in records, so that a store may be moved."""
_SHOWN_LINES = 6
_MARKED = "NAIAD_ACTIVATION"
"""The variable by which processes are known that scripts have started, also those with a session of their own."""
_KEPT_BYTES = 4096
_READ_BYTES = 1 << 16
_MOST_READS = 16
_MOST_ROUNDS = 100
_ROUND_SECONDS = 0.02
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Of the shell itself.
_IGNORED = ("_", "SHLVL", "PWD", "OLDPWD", "PS[1-4]", "IFS", "BASH*", "SHELLOPTS", "PATH", "COLUMNS", "LINES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What activating an environment does to variables.

    Attributes:
        fixed: Variables of `env_vars.d` and `conda-meta/state`; None to remove one.
        variables: Variables that the scripts set. A value may contain the mark of a value that it extends.
        plain: Their values where there is no value to extend.
        removed: Variables that the scripts remove.
        path_before: Folders that the scripts put before the others of PATH.
        path_after: Folders that they put behind.
        scripts: Names of the scripts.
        problems: Scripts that failed, and effects that guests do not get, as sentences.
    """

    fixed: Mapping[str, str | None] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    path_before: tuple[str, ...] = ()
    path_after: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The variables that it sets or removes, sorted."""
        path = ["PATH"] if self.path_before or self.path_after else []
        return sorted({*self.fixed, *self.variables, *self.removed, *path})

    def __str__(self) -> str:
        if not self.scripts and not self.fixed:
            return "nothing"
        what = counted(len(self.scripts), "script") + f" of {_SCRIPTS}" if self.scripts else "the environment's files"
        return f"{what}: {', '.join(self.names) or 'no variables'}"

    def apply(self, environ: dict[str, str]) -> None:
        """Change the variables of a guest as the activation does."""
        _apply_fixed(self.fixed, environ)
        for name in self.removed:
            environ.pop(name, None)
        for name, value in self.variables.items():
            found = environ.get(name, "")
            environ[name] = value.replace(_MARK, found) if found else self.plain[name]
        if self.path_before or self.path_after:
            found = environ.get("PATH", os.defpath)
            environ["PATH"] = os.pathsep.join((*self.path_before, found, *self.path_after))


NOT_ACTIVATED = Activation()
"""The activation of an environment that conda would do nothing for."""


def activation_scripts(prefix: Path) -> list[Path]:
    """The scripts that activating an environment runs, in their order."""
    return sorted(_files(prefix / _SCRIPTS, ".sh"))


def activate(prefix: Path, record: Path, *, where: str, watches: bool) -> Activation:
    """The activation of an environment. Runs its scripts unless a record has their result; without scripts no process.

    Args:
        prefix: Folder of the environment.
        record: The file to keep the result in.
        where: Name of the environment, for the log.
        watches: Whether the environment may change, so that a record is compared with its scripts.
    """
    fixed = _fixed_variables(prefix)
    scripts = activation_scripts(prefix)
    if not scripts:
        return Activation(fixed=fixed) if fixed else NOT_ACTIVATED
    seen = _unplaced({"fixed": fixed, "scripts": [_stamp(path) for path in scripts] if watches else []}, prefix)
    known = json_cache.read(record)
    if known is not None and known.get("format") == _FORMAT and known.get("seen") == seen:
        try:
            return _read(_placed(known["activation"], prefix), fixed)
        except (KeyError, TypeError, ValueError):
            _log.debug("%s is invalid; running the scripts of %s again", record, prefix)
    found = _Run(prefix, scripts, fixed).activation()
    _log.info("activated %s by %s", where, found)
    kept = {name: value for name, value in asdict(found).items() if name != "fixed"}
    try:
        json_cache.write(record, {"format": _FORMAT, "seen": seen, "activation": _unplaced(kept, prefix)})
    except OSError as error:
        _log.debug("cannot keep the activation of %s: %s", prefix, error)
    return found


class Activations:
    """The activations of the environments that a server uses. Methods are thread-safe.

    Args:
        root: Folder of the store.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "activations"
        # Models that share an environment load concurrently; the lock makes one of them run its scripts.
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
        self._known: dict[Path, tuple[object, Activation]] = {}

    def of_entry(self, entry: Path, prefix: Path, where: str) -> Activation:
        """The activation of an entry of the store; the entry keeps it."""
        return self._find(prefix, entry / RECORD_NAME, where, watches=False)

    def of_folder(self, prefix: Path, where: str) -> Activation:
        """The activation of an environment that is used in place."""
        return self._find(prefix, self._folder / json_cache.name_for(str(prefix)), where, watches=True)

    def _find(self, prefix: Path, record: Path, where: str, *, watches: bool) -> Activation:
        scripts = activation_scripts(prefix)
        if not scripts:
            return activate(prefix, record, where=where, watches=watches)
        seen = [_stamp(path) for path in scripts]
        with self._locks[prefix]:
            before, known = self._known.get(prefix, (None, NOT_ACTIVATED))
            if before == seen:  # also where the store is read-only and has no record
                return known
            found = activate(prefix, record, where=where, watches=watches)
            for problem in found.problems:
                _log.warning("%s: %s", where, problem)
            self._known[prefix] = (seen, found)
            return found


def _read(value: Mapping[str, Any], fixed: Mapping[str, str | None]) -> Activation:
    lists = ("removed", "path_before", "path_after", "scripts", "problems")
    return Activation(
        fixed=fixed,
        variables=dict(value["variables"]),
        plain=dict(value["plain"]),
        **{name: tuple(value[name]) for name in lists},
    )


def _placed(value: Any, prefix: Path) -> Any:
    """A value of a record, with the environment's folder in place of its mark."""
    return _replaced(value, _PREFIX_MARK, str(prefix))


def _unplaced(value: Any, prefix: Path) -> Any:
    return _replaced(value, str(prefix), _PREFIX_MARK)


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, Mapping):
        return {name: _replaced(one, old, new) for name, one in value.items()}
    return [_replaced(one, old, new) for one in value] if isinstance(value, (list, tuple)) else value


def _fixed_variables(prefix: Path) -> dict[str, str | None]:
    """The variables that conda or the recipe stored: those of packages, then those of the environment's own.

    Raises:
        ExecutionEnvironmentError: If a file is malformed, or names a variable that no process can have.
    """
    found: dict[str, str | None] = {}
    for file in sorted(_files(prefix / "etc/conda/env_vars.d", ".json")):
        found.update(_stored_variables(file, _object_in(file)))
    state = prefix / "conda-meta" / "state"
    own = _object_in(state).get("env_vars")
    return {**found, **_stored_variables(state, own if isinstance(own, dict) else {})}


def _object_in(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file."""
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
    """Whether a text can be in the environment of a process."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _apply_fixed(fixed: Mapping[str, str | None], environ: dict[str, str]) -> None:
    for name, value in fixed.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    try:
        with os.scandir(folder) as found:
            yield from (Path(entry.path) for entry in found if entry.name.endswith(suffix) and entry.is_file())
    except OSError:
        return


def _stamp(path: Path) -> list[int | str]:
    facts = path.stat()
    return [path.name, facts.st_mtime_ns, facts.st_size, facts.st_ino]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one run of the scripts did: the variables afterwards, the scripts that ended, and what is wrong."""

    variables: Mapping[str, str]
    ended: tuple[Path, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ShellOutcome:
    """What one shell did.

    Attributes:
        variables: The variables after the last script that ended.
        failures: How each script that ended has failed; empty texts for those that have not.
        end: How the shell ended, for the script after them.
        problems: What else is wrong.
    """

    variables: dict[str, str]
    failures: tuple[str, ...]
    end: str
    problems: tuple[str, ...]


class _Run:
    """Runs the scripts of one environment, as often as is needed, within one limit of time."""

    def __init__(self, prefix: Path, scripts: Sequence[Path], fixed: Mapping[str, str | None]) -> None:
        self._prefix = prefix
        self._scripts = scripts
        self._deadline = time.monotonic() + TIME_LIMIT
        self._base = _base_variables(prefix)
        _apply_fixed(fixed, self._base)
        self._fixed = fixed

    def activation(self) -> Activation:
        """The difference that the scripts make."""
        shell = _find_shell()
        names = tuple(path.name for path in self._scripts)
        if shell is None:
            problem = f"the scripts in {_SCRIPTS} were not run: this machine has no bash and no sh; install one of them"
            return Activation(fixed=self._fixed, scripts=names, problems=(problem,))
        first = self._run(shell, self._scripts, self._base)
        plain = _changed(self._base, first.variables)
        marked = {name: _MARK for name in plain if name not in self._base}
        variables, problems = dict(plain), first.problems
        if marked and first.ended:
            second = self._run(shell, first.ended, {**self._base, **marked}).variables
            kept = {name: value for name, value in second.items() if name in marked and _MARK in value}
            variables.update(kept)
            varying = [name for name in marked if name not in kept and second.get(name, plain[name]) != plain[name]]
            problems += _varying_problems(varying)
        before, after = _path_difference(self._base["PATH"], first.variables.get("PATH", ""))
        return Activation(
            fixed=self._fixed,
            variables=variables,
            plain=plain,
            removed=tuple(name for name in self._base if name not in first.variables and not _is_ignored(name)),
            path_before=before,
            path_after=after,
            scripts=names,
            problems=problems,
        )

    def _run(self, shell: str, scripts: Sequence[Path], base: Mapping[str, str]) -> _Outcome:
        """Run scripts in one shell, as conda does; in another one after a script that ends the shell."""
        variables, waiting = dict(base), list(scripts)
        ended: list[Path] = []
        problems: list[str] = []
        with tempfile.TemporaryDirectory(prefix="naiad-activation-") as scratch:
            while waiting:
                shown = self._run_shell(shell, waiting, variables, Path(scratch))
                variables = shown.variables
                ended += waiting[: len(shown.failures)]
                problems += [_failure(path, how) for path, how in zip(waiting, shown.failures, strict=False) if how]
                problems += shown.problems
                waiting = waiting[len(shown.failures) :]
                if waiting:
                    problems.append(_failure(waiting[0], shown.end))
                    waiting = waiting[1:] if time.monotonic() < self._deadline else []
        return _Outcome(variables, tuple(ended), tuple(problems))

    def _run_shell(
        self, shell: str, scripts: Sequence[Path], variables: Mapping[str, str], scratch: Path
    ) -> _ShellOutcome:
        dump = scratch / "variables"
        dump.write_bytes(b"")
        options = ["--noprofile", "--norc"] if Path(shell).name == "bash" else []
        mark = secrets.token_hex(16)
        reading, writing = os.pipe()
        output = _ScriptOutput(mark.encode())
        with io.FileIO(reading) as pipe:
            try:
                process = subprocess.Popen(
                    [shell, *options, "-c", _commands(scripts, dump, mark)],
                    env={**variables, _MARKED: mark},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=writing,
                    start_new_session=True,
                )
            finally:
                os.close(writing)
            with ended_with_group(process):
                has_ended = _wait_until_ended(process.pid, pipe, output, self._deadline)
                if not has_ended:
                    kill_group(process.pid)  # before the others: the shell would go on to the next script
                left = _end_marked(mark, process.pid)
                kill_group(process.pid)
                status = process.wait()
            output.read_rest(pipe)
        how = f"it ended the shell with status {status}"
        if not has_ended:
            how = f"it did not end within {TIME_LIMIT:g} s, the limit for all scripts of an environment"
        failures, found = _read_dump(dump.read_bytes(), output.of_scripts)
        return _ShellOutcome(
            dict(variables) if found is None else found,
            failures,
            _with_output(how, _last_lines(output.last)),
            _left_problems(left if has_ended else []),
        )


class _ScriptOutput:
    """What scripts print, split at a mark that the shell prints after each; the last few KiB of each part are kept.

    Attributes:
        of_scripts: The output of each script that ended.
        last: What was printed after these.
    """

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self.of_scripts: list[bytes] = []
        self.last = b""

    def add(self, data: bytes) -> None:
        """Add what was read."""
        *ended, rest = (self.last + data).split(self._mark)
        self.of_scripts += [each[-_KEPT_BYTES:] for each in ended]
        self.last = rest[-_KEPT_BYTES:]

    def read_rest(self, pipe: io.FileIO) -> None:
        """Add what is in a pipe, which a process that nobody could end may keep open."""
        os.set_blocking(pipe.fileno(), False)
        for _ in range(_MOST_READS):
            if data := pipe.read(_READ_BYTES):
                self.add(data)
            else:
                break


def _wait_until_ended(pid: int, pipe: io.FileIO, output: _ScriptOutput, deadline: float) -> bool:
    """Wait for a child process, which stays to be reaped, and read its output; False if it ends after the deadline."""
    descriptor = os.pidfd_open(pid)
    waiting: list[io.FileIO | int] = [descriptor, pipe]
    try:
        while True:
            remaining = max(0.1, deadline - time.monotonic())
            ready, _, _ = select.select(waiting, [], [], remaining)
            if descriptor in ready:
                return True
            if not ready or time.monotonic() > deadline:
                return False
            data = pipe.read(_READ_BYTES)
            output.add(data)
            if not data:
                waiting.remove(pipe)
    finally:
        os.close(descriptor)


def _end_marked(mark: str, leader: int) -> list[str]:
    """End all processes that have inherited a mark, in whatever session they are; the names of those but the leader."""
    names: dict[int, str] = {}
    entry = f"{_MARKED}={mark}".encode()
    for _ in range(_MOST_ROUNDS):  # they may start others meanwhile
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pid = int(folder.name)
                if pid != leader and entry in (folder / "environ").read_bytes():
                    found = True
                    names[pid] = (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
                    os.kill(pid, signal.SIGKILL)
        if not found:
            break
        time.sleep(_ROUND_SECONDS)
    return list(names.values())


def _find_shell() -> str | None:
    # conda-forge's scripts are written for bash, and most also run in a POSIX shell.
    found = (shutil.which(name, path=os.pathsep.join(_SYSTEM_PATH)) or shutil.which(name) for name in ("bash", "sh"))
    return next(filter(None, found), None)


def _base_variables(prefix: Path) -> dict[str, str]:
    """The variables that scripts start with: few, so that the result is the same for all servers that share it."""
    kept = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME", "TZ", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join((str(prefix / "bin"), *_SYSTEM_PATH)),
        "CONDA_PREFIX": str(prefix),
        "CONDA_DEFAULT_ENV": str(prefix),
        "CONDA_SHLVL": "1",
    }


def _commands(scripts: Sequence[Path], dump: Path, mark: str) -> str:
    """The shell's program: sources each script, and writes its status and the variables after it.

    A script may leave options such as `set -eu`, which would end the shell in the next one, and may redirect
    its output.
    """
    # By its path: a script may set PATH to anything.
    env = shlex.quote(shutil.which("env", path=os.pathsep.join(_SYSTEM_PATH)) or "env")
    target = shlex.quote(str(dump))
    lines = ["exec 9>&1"]
    for path in scripts:
        report = f"command printf 'naiad:status:%s\\0' \"$?\" >> {target}"
        lines += [
            f"command . {shlex.quote(str(path))} 9>&-",
            report,
            "command set +eux",
            f"{{ {env} -0; command printf 'naiad:end\\0'; }} >> {target}",
            f"command printf '%s' {mark} >&9",
        ]
    return "\n".join(lines) + "\n"


def _read_dump(dump: bytes, outputs: Sequence[bytes]) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """What a shell has reported.

    Returns:
        How each script that ended has failed; the variables after the last of them, None without one.
    """
    failures: list[str] = []
    found: dict[str, str] | None = None
    current: dict[str, str] = {}
    status = 0
    for part in dump.split(b"\0"):
        text = part.decode("utf-8", "surrogateescape")
        if text == "naiad:end":
            said = _last_lines(outputs[len(failures)] if len(failures) < len(outputs) else b"")
            # A script whose last command is a test (`[ -n "$X" ] && ...`) returns 1 though nothing has failed.
            is_failure = status > 1 or (status == 1 and bool(said))
            failures.append(_with_output(f"exit status {status}", said) if is_failure else "")
            found = current
        elif text.startswith("naiad:status:"):
            status, current = int(text.rpartition(":")[2]), {}
        elif "=" in text:
            name, _, value = text.partition("=")
            current[name] = value
    if found is not None:
        found.pop(_MARKED, None)
    return tuple(failures), found


def _last_lines(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join(lines[-_SHOWN_LINES:])


def _with_output(how: str, output: str) -> str:
    return f"{how}: {output}" if output else f"{how}, with no output"


def _failure(script: Path, how: str) -> str:
    return (
        f"the activation script {_SCRIPTS}/{script.name} failed, {how}; models may lack variables that it sets: "
        "correct the script, or the package that it is from, in the environment"
    )


def _left_problems(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    problem = (
        f"the activation scripts left processes running, which were ended: {', '.join(sorted(names))}; scripts are run "
        "once and not for each guest: start these in the model's initialize instead"
    )
    return (problem,)


def _varying_problems(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        f"the activation scripts set {name} to another value each time; models get the value of the first run, because "
        "scripts are not run again for each guest: compute the value in the model's initialize instead"
        for name in names
    )


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in after.items() if before.get(name) != value and not _is_ignored(name)}


def _is_ignored(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _IGNORED)


def _path_difference(before: str, after: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The folders that PATH has got, before and behind those that it had."""
    known, entries = before.split(os.pathsep), after.split(os.pathsep)
    first = next((number for number, entry in enumerate(entries) if entry in known), len(entries))
    added = [(number, entry) for number, entry in enumerate(entries) if entry and entry not in known]
    return (
        tuple(entry for number, entry in added if number < first),
        tuple(entry for number, entry in added if number > first),
    )

"""Running uv, which resolves and installs packages, with what people have set for pip.

The output is parsed for steps, and for the requirement that caused a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path
from typing import cast

from naiad.config.server.access import SERVER_SECRETS
from naiad.core import blocking
from naiad.core.child_processes import start_kept
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.quantities import parse_size, size_text
from naiad.core.real_paths import real_path
from naiad_building.indexes import PackageIndexes
from naiad_building.lockfiles import Pin, pin_lines
from naiad_building.pip_settings import read_pip_settings

PYLOCK_COMMAND = ("pip", "compile", "--format=pylock.toml", "--generate-hashes", "--no-header", "--quiet")
"""Writes a `pylock.toml`: to be followed by options, `-o` and both files."""
_LAST_LINES, _SHOWN_LINES = 12, 40
_ERROR = ("error: ", "  \N{MULTIPLICATION SIGN} ")
_KEPT_LINES = 2000
_LINE_LENGTH = 4096
_FAILURES = (
    re.compile(r"there (?:is|are) no versions? of (\S+)"),
    re.compile(r"Because \S+ was not found.*?you\s+require\s+(\S+)", re.DOTALL),
    re.compile(r"Because (\S+) was not found"),
    re.compile(r"Failed to (?:build|download|fetch|read|parse)(?: metadata for)?:? `([^`]+)`"),
    re.compile(r"Hash mismatch for `([^`]+)`"),
)
_STEPS = ("Resolved ", "Prepared ", "Installed ")
_DOWNLOADING = re.compile(r"Downloading (\S+) \(([\d.]+[KMGT]?i?B)\)")
_STRATEGY = "unsafe-best-match"
_NOT_FOUND = "not found in the package registry"
_REFUSED = re.compile(r"^hint: .*(?:\b40[13] (?:Unauthorized|Forbidden))")
_ACTIVATED = frozenset({"VIRTUAL_ENV", "CONDA_PREFIX"})
_at_once = threading.Semaphore(4)
"""Installers that run at a time: a load that waits for one holds no slot of loading."""
_finding_uv = threading.Lock()
"""uv's function calls `sysconfig.get_config_vars`: up to Python 3.11, a second thread gets a dict that is not full."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements to install; locked ones list all dependencies, so that none are added, and have digests."""

    text: str
    named_in: Path
    is_locked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """Where packages come from: folders of wheels, and unless *offline*, these indexes and those set for pip."""

    wheels: tuple[Path, ...] = ()
    offline: bool = False
    indexes: PackageIndexes = field(default_factory=PackageIndexes)
    progress: Callable[[str], None] = lambda _: None  # gets each step, as a line


def grouped(pins: Iterable[Pin], options: InstallOptions) -> list[tuple[InstallOptions, list[Pin]]]:
    """The packages in groups that come from the same indexes, each with these."""
    groups: dict[str, tuple[InstallOptions, list[Pin]]] = {}
    for pin in pins:
        chosen = options.indexes.for_package(pin.name)
        groups.setdefault(repr(chosen), (replace(options, indexes=chosen), []))[1].append(pin)
    return list(groups.values())


def locked_requirements(
    pins: Iterable[Pin], named_in: Path, options: InstallOptions
) -> list[tuple[Requirements, InstallOptions]]:
    """What to install for locked packages, each with its sources."""
    groups = grouped(pins, options)
    return [(Requirements(pin_lines(group), named_in, is_locked=True), chosen) for chosen, group in groups]


def install(name: str, requirements: Requirements, python: Path, options: InstallOptions) -> None:
    """Install requirements into the prefix of an interpreter."""
    with tempfile.TemporaryDirectory(prefix="naiad-install-") as folder:
        file = Path(folder, "requirements.txt")
        file.write_text(requirements.text, encoding="utf-8")
        locked = ["--no-deps", "--require-hashes"] if requirements.is_locked else []
        # Hard-linked files would belong to uv's cache, and rewriting prefixes would change them there.
        arguments = ["pip", "install", "--break-system-packages", "--link-mode=copy", *locked, "-r", str(file)]
        run_uv(arguments, name, requirements.named_in, python, options)


def run_uv(arguments: Sequence[str], name: str, named_in: Path, python: Path, options: InstallOptions) -> list[str]:
    """Run a command of uv in the folder of *named_in*; returns the last lines of its output."""
    command, environ = uv_command(arguments, python, options)
    # Lock files that uv leaves in its TMPDIR are removed with that.
    with tempfile.TemporaryDirectory(prefix="naiad-uv-") as folder:
        where = {**environ, "TMPDIR": folder}, real_path(named_in).parent
        code, lines = _run(command, where, options.progress)
        said = lines
        if code and any(_NOT_FOUND in line for line in lines):
            # Of an index that refuses access, uv tells only with its default strategy.
            first = ["first-index" if each == _STRATEGY else each for each in command]
            _, said = _run(first, where, lambda _: None)
    if code:
        raise _failure(name, named_in, lines, said)
    return lines


def uv_command(arguments: Sequence[str], python: Path, options: InstallOptions) -> tuple[list[str], dict[str, str]]:
    """A command of uv with an interpreter and sources of packages, and its environment."""
    settings = read_pip_settings(os.environ)
    indexes = options.indexes.before(settings.indexes)
    if options.offline:
        indexes = PackageIndexes(find_links=settings.indexes.find_links, only_links=True)
    command = [
        *(str(find_uv()), *arguments, "--python", str(python)),
        *("--no-config", "--no-progress", "--color=never", "--no-python-downloads"),
        # pip searches all indexes for the best version; uv's default stops at the first index with the package.
        *("--index-strategy", _STRATEGY),
        *indexes.uv_arguments(),
        *(["--offline"] if options.offline else []),
        *(f"--find-links={real_path(folder)}" for folder in options.wheels),
    ]
    environ = {name: value for name, value in clean_environ(os.environ).items() if name not in _ACTIVATED}
    return command, {**environ, **settings.variables}


def run_to_end(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a command that creates environments or interpreters; `stdout` has the end of all that it printed."""
    code, lines = _run(list(map(str, command)), (clean_environ(os.environ), Path("/")), lambda _: None)
    return subprocess.CompletedProcess(command, code, "\n".join(lines))


def find_uv() -> Path:
    """The uv that was installed with naiad, else the one on PATH: a bundle has none."""
    try:
        with _finding_uv:
            from uv import find_uv_bin

            return Path(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        if (found := shutil.which("uv")) is not None:
            return Path(found)
        raise ExecutionEnvironmentError(
            "cannot build environments: the program uv is neither beside this Python nor on PATH; install it with "
            "`pip install uv`"
        ) from error


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for an installer: the user's, without variables that redirect Python, and without secrets."""
    secret = SERVER_SECRETS  # a build runs code of packages
    kept = {name: environ[name] for name in environ if not name.startswith("PYTHON") and name not in secret}
    # Debian's Python would install packages and scripts under <prefix>/local.
    return {**kept, "DEB_PYTHON_INSTALL_LAYOUT": "deb"}


def find_failed_requirement(lines: Sequence[str]) -> str | None:
    """The requirement that caused a failure according to uv's output, None if unknown."""
    found = filter(None, (pattern.search("\n".join(lines)) for pattern in _FAILURES))
    return next((match[1].rstrip(",;:") for match in found), None)


def _failure(name: str, named_in: Path, lines: Sequence[str], said: Sequence[str]) -> ExecutionEnvironmentError:
    what = find_failed_requirement(lines) or "the requirements"
    reason = "\n  ".join(_reason([line for line in lines if line.strip()]))
    message = f"cannot install {what} for '{name}', named in {named_in}; the error of uv:\n  {reason}"
    if refused := next((line for line in said if _REFUSED.search(line)), ""):
        message += f"\n  An index refuses access, so check its user and password: {refused.partition(': ')[2]}"
    return ExecutionEnvironmentError(message)


def _reason(lines: Sequence[str]) -> Sequence[str]:
    """The error and its causes, which uv prints last, without warnings and steps before it."""
    first = next((number for number, line in enumerate(lines) if line.startswith(_ERROR)), len(lines) - _LAST_LINES)
    return lines[max(first, 0) :][:_SHOWN_LINES]


class _Steps:
    """The steps of uv, with bytes and rate: uv prints the size of a large file first, and its name when it has it."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._done = 0
        self._began = time.monotonic()

    def step(self, line: str) -> str:
        """The step of a line; empty if it is none."""
        if found := _DOWNLOADING.fullmatch(line):
            self._sizes[found[1]] = parse_size(found[2])
            return f"downloading {found[1]}, {self._so_far()}"
        name = line.removeprefix("Downloaded ")
        if name not in self._sizes:
            return line if line.startswith(_STEPS) else ""
        self._done += self._sizes[name]
        return f"downloaded {name}, {self._so_far()}, {size_text(self._done / (time.monotonic() - self._began))}/s"

    def _so_far(self) -> str:
        return f"{size_text(self._done)} of {size_text(sum(self._sizes.values()))}"


def _run(
    command: Sequence[str], where: tuple[Mapping[str, str], Path], progress: Callable[[str], None]
) -> tuple[int, list[str]]:
    """The exit code of a command and its last lines; *where* is its environment and working directory."""
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    environ, folder = where
    steps = _Steps()
    # It ends, with all that it has started, with this context, and with this process.
    with blocking.held(_at_once), start_kept(command, environ, folder=folder) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        output = TextIOWrapper(BufferedReader(cast("FileIO", process.stdout)), errors="replace")
        with blocking.on_cancel(process.stdin.close):
            for line in iter(partial(output.readline, _LINE_LENGTH), ""):
                lines.append(line.rstrip())
                if step := steps.step(line.strip()):
                    progress(step)
            code = process.wait()
    return code, list(lines)

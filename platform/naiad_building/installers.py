"""Installing packages into a prefix with pip or uv.

uv is used if it is installed: it is several times faster. pip need not be in the prefix (`pip_program`).
Both use the indexes and certificates of the user's pip configuration, which uv does not read itself. The output is
parsed for steps, and for the requirement that caused a failure.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from virtualenv.seed.wheels.embed import get_embed_wheel

from naiad.config.server.access import SERVER_SECRETS
from naiad.core import blocking
from naiad.core.child_processes import ended_with_group
from naiad.core.errors import ExecutionEnvironmentError, OptionError
from naiad.core.real_paths import real_path
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.indexes import NO_INDEXES, PackageIndexes
from naiad_building.network_failures import NetworkFailureError, network_cause
from naiad_building.pip_program import find_pip, unpacked_pip
from naiad_building.requirements import Requirements

__all__ = [
    "INSTALLERS",
    "InstallOptions",
    "clean_environ",
    "download_wheels",
    "find_failed_requirement",
    "find_uv",
    "install",
    "install_command",
    "installer_uv",
    "pip_command",
    "pip_settings",
    "run_installer",
    "uv_command",
    "uv_environ",
    "uv_lock_script_command",
    "uv_pylock_command",
    "uv_settings",
    "uv_venv_command",
    "with_sources",
]

INSTALLERS = ("auto", "pip", "uv")
"""Values of `--installer`; `auto` is uv if it is installed, else pip."""

_SCRIPT = Path(__file__).with_name("_installer_script.py")
_LAST_LINES = 12
_FAILURES = (
    re.compile(r"No matching distribution found for (\S+)"),
    re.compile(r"satisfies the requirement (\S+)"),
    re.compile(r"Failed to build '?([A-Za-z0-9._-]+)'?"),
    re.compile(r"Failed building wheel for (\S+)"),
    re.compile(r"Package '?([A-Za-z0-9._-]+)'? requires a different Python"),
    re.compile(r"Invalid requirement: ['\"]?([^'\":]+)"),
    re.compile(r"Cannot install (.+?) because"),
    re.compile(r"DO NOT MATCH THE HASHES.*?^\s+(\S+) from", re.DOTALL | re.MULTILINE),
    # messages of uv
    re.compile(r"there (?:is|are) no versions? of (\S+)"),
    re.compile(r"Because \S+ was not found.*?you\s+require\s+(\S+)", re.DOTALL),
    re.compile(r"Because (\S+) was not found"),
    re.compile(r"Failed to (?:build|download|fetch|read|parse)(?: metadata for)?:? `([^`]+)`"),
    re.compile(r"Hash mismatch for `([^`]+)`"),
)
_STEPS = ("Collecting ", "Installing ", "Resolved ", "Prepared ", "Installed ")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """Options for installing packages.

    Attributes:
        installer: One of INSTALLERS.
        wheels: Folders with wheels.
        offline: Whether these folders are the only source.
        indexes: Indexes beside those of pip's configuration, unless it is offline.
    """

    installer: str = "auto"
    wheels: tuple[Path, ...] = ()
    offline: bool = False
    indexes: PackageIndexes = NO_INDEXES


def install(
    name: str,
    requirements: Requirements,
    base: BaseInterpreter,
    python: Path,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> None:
    """Install requirements into the prefix of *python*.

    Args:
        name: Name of the recipe, for messages.
        requirements: The requirements.
        base: The interpreter that *python* is a copy of.
        python: The interpreter in the prefix.
        options: Installer and sources.
        progress: Called with a line for each step.

    Raises:
        ExecutionEnvironmentError: If it fails; names the package and ends with the installer's last lines.
        OptionError: If the requested installer is not installed.
    """
    uv = installer_uv(options)
    # Named, because the two install other files of the same packages: the archive's digest depends on it.
    progress(f"installing {requirements.named_in} with {'pip' if uv is None else 'uv'}")
    if uv is None:
        command, environ = install_command(find_pip(base), python), clean_environ(os.environ)
    else:
        settings = uv_settings(options)
        command = uv_command(uv, python, settings)
        environ = uv_environ(clean_environ(os.environ), settings)
    run_installer(name, requirements, with_sources(command, options, uv), environ, progress)


def download_wheels(
    name: str,
    requirements: Requirements,
    base: BaseInterpreter,
    folder: Path,
    progress: Callable[[str], None],
    indexes: PackageIndexes = NO_INDEXES,
) -> None:
    """Download the wheels of requirements into a folder, for offline builds.

    Args:
        name: Name of the recipe, for messages.
        requirements: The requirements.
        base: The interpreter that they are for.
        folder: The folder.
        progress: Called with a line for each step.
        indexes: Indexes beside those of pip's configuration.

    Raises:
        ExecutionEnvironmentError: If it fails; names the package and ends with pip's last lines.
    """
    command = [
        *pip_command(find_pip(base), base.executable, "download"),
        "--dest",
        str(folder),
        *indexes.pip_arguments(),
    ]
    run_installer(name, requirements, command, clean_environ(os.environ), progress)


def run_installer(
    name: str,
    requirements: Requirements,
    command: list[str],
    environ: dict[str, str],
    progress: Callable[[str], None],
    *,
    has_file: bool = True,
) -> None:
    """Run an installer, with a requirements file as its last argument if *has_file*.

    Its TMPDIR is removed afterwards: pip extracts its certificates there, uv creates lock files.

    Raises:
        ExecutionEnvironmentError: If it fails.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-install-") as folder:
        file = Path(folder, "requirements.txt")
        file.write_text(requirements.text, encoding="utf-8")
        where = {**environ, "TMPDIR": folder}, real_path(requirements.named_in).parent
        flags = [
            *(["--no-deps"] if requirements.complete else []),
            *(["--require-hashes"] if requirements.hashed else []),
        ]
        listed = ["-r", str(file)] if has_file else []
        code, lines = _run([*command, *flags, *listed], where, progress)
        said = lines
        if code and _STRATEGY in command and any(_NOT_FOUND in line for line in lines):
            # Of an index that refuses access, uv tells only with its default strategy.
            first = ["first-index" if each == _STRATEGY else each for each in command]
            _, said = _run([*first, *flags, *listed], where, lambda _: None)
    if code:
        raise _failure(name, requirements, Path(command[0]).name, lines, said)


def _run(
    command: list[str], where: tuple[dict[str, str], Path], progress: Callable[[str], None]
) -> tuple[int, list[str]]:
    """The exit code of an installer and its last lines; *where* is its environment and working directory."""
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    with _running(command, *where) as process:
        assert process.stdout is not None
        for line in iter(partial(process.stdout.readline, _LINE_LENGTH), ""):
            lines.append(line.rstrip())
            if line.startswith(_STEPS):
                progress(line.partition(" (from ")[0].strip())
    return process.returncode, list(lines)


def find_failed_requirement(lines: list[str]) -> str | None:
    """The requirement that caused a failure according to the installer's output, None if unknown."""
    output = "\n".join(lines)
    for pattern in _FAILURES:
        match = pattern.search(output)
        if match and not match[1].startswith("-"):  # an option of the installer
            return match[1].rstrip(",;:")
    return None


def installer_uv(options: InstallOptions) -> Path | None:
    """The uv that these options use; None for pip.

    Raises:
        OptionError: If uv is requested and not installed.
    """
    if options.installer == "pip":
        return None
    uv = find_uv()
    if uv is None and options.installer == "uv":
        raise OptionError("uv is not installed: `pip install naiad[uv]`, or leave --installer out to use pip")
    return uv


def uv_settings(options: InstallOptions) -> dict[str, list[str]]:
    """The settings of pip for a command of uv, with the indexes of these options."""
    return pip_settings() if options.offline else options.indexes.uv_settings(pip_settings())


def with_sources(command: list[str], options: InstallOptions, uv: Path | None) -> list[str]:
    """A command of pip, or of uv, with the arguments that restrict and add sources of packages.

    A command of uv has the indexes already: in the settings that it was made with.
    """
    own = [] if options.offline or uv is not None else options.indexes.pip_arguments()
    only = ["--no-index", *(["--offline"] if uv is not None else [])] if options.offline else []
    # uv rejects `--no-index` twice, and the user's settings may have it already.
    return [
        *command,
        *own,
        *(argument for argument in only if argument not in command),
        *(f"--find-links={real_path(folder)}" for folder in options.wheels),
    ]


def _failure(
    name: str, requirements: Requirements, program: str, lines: list[str], said: list[str]
) -> ExecutionEnvironmentError:
    what = find_failed_requirement(lines) or "the requirements"
    # Warnings would displace the relevant lines.
    relevant = [line for line in lines if line.strip() and not line.startswith("WARNING:")]
    relevant = relevant[-_LAST_LINES:]
    last = "\n  ".join(relevant)
    installer = "uv" if program.startswith("uv") else "pip"
    message = (
        f"cannot install {what} for '{name}', named in {requirements.named_in}; last lines of {installer}:\n  {last}"
    )
    if refused := next((line for line in said if _REFUSED.search(line)), ""):
        message += f"\n  An index refuses access, so check its user and password: {refused.partition(': ')[2]}"
    cause = network_cause(relevant, requirements.named_in)
    return NetworkFailureError(message, cause) if cause else ExecutionEnvironmentError(message)


# Settings of the user that would install packages elsewhere.
_UNWANTED = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON", "PIP_EDITABLE"),
    *SERVER_SECRETS,  # a build runs code of packages
)
_QUIET = (
    *("--no-input", "--disable-pip-version-check", "--root-user-action", "ignore", "--no-warn-script-location"),
    *("--no-compile", "--no-user"),
)
_PROXIES = "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"
_OF_NETWORK = {
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "timeout": ("UV_HTTP_TIMEOUT",),
    # In both spellings: programs differ in which one they prefer.
    "proxy": (*_PROXIES, *map(str.lower, _PROXIES)),
}
"""Settings of pip, and the variables that uv has for them."""
_KEPT_LINES = 2000
_LINE_LENGTH = 4096
_at_once = threading.Semaphore(4)
"""Installers that run at a time: a load that waits for one holds no slot of loading."""
_finding_uv = threading.Lock()
"""uv's function calls `sysconfig.get_config_vars`: up to Python 3.11, a second thread gets a dict that is not full."""
_STRATEGY = "unsafe-best-match"
_NOT_FOUND = "not found in the package registry"
_REFUSED = re.compile(r"^(?:hint|WARNING): .*(?:\b40[13] (?:Unauthorized|Forbidden|Error|Client Error))")
_SETTING = re.compile(r"^[\w:.]+\.([\w-]+)=(.*)$")


def pip_command(pip: Path, python: Path, verb: str) -> list[str]:
    """The command that runs the pip in a folder or wheel under an interpreter."""
    return [str(python), "-I", f"{pip}/pip", verb, *(_QUIET if verb == "install" else _QUIET[:2])]


def install_command(pip: Path, python: Path) -> list[str]:
    """The pip command that installs packages."""
    return [*pip_command(pip, python, "install"), "--progress-bar=off"]


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for an installer: the user's, without variables that redirect installations."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON") and name not in _UNWANTED}
    # Debian's Python would install packages and scripts under <prefix>/local.
    return {**kept, "DEB_PYTHON_INSTALL_LAYOUT": "deb"}


def run_to_end(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a command of an installer; `stdout` has the end of what it printed, to stderr as well."""
    with _running(command, clean_environ(os.environ)) as process:
        assert process.stdout is not None
        output = "".join(deque(iter(partial(process.stdout.readline, _LINE_LENGTH), ""), maxlen=_KEPT_LINES))
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, output)


@contextmanager
def _running(
    command: Sequence[str | Path], environ: Mapping[str, str], directory: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """An installer with all its output on `stdout`; it ends with the context, and with this process."""
    with blocking.held(_at_once):
        # Nothing is written to this pipe. The script reads its end when this process has ended, however that happened.
        watched, held = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SCRIPT), *map(str, command)],
                env=environ,
                cwd=directory,
                stdin=watched,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            with ended_with_group(process):
                yield process
        finally:
            os.close(watched)
            os.close(held)


def pip_settings() -> dict[str, list[str]]:
    """The user's pip settings, such as indexes, for installers that do not read them.

    Read under the host's interpreter: the one being built may be too old. Read once for the same PIP_* variables,
    because it takes as long as a small installation.

    Raises:
        ExecutionEnvironmentError: If pip fails. Continuing would use other indexes than the user's.
    """
    return _read_settings(tuple(sorted(item for item in os.environ.items() if item[0].startswith("PIP_"))))


@functools.lru_cache(maxsize=1)
def _read_settings(_variables: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    pip = get_embed_wheel("pip", f"{sys.version_info.major}.{sys.version_info.minor}")
    assert pip is not None  # virtualenv has one for each version that the host runs on
    run = subprocess.run(
        [sys.executable, "-I", f"{unpacked_pip(Path(pip.path))}/pip", "config", "list"],
        env=clean_environ(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise ExecutionEnvironmentError(f"cannot read the settings of pip: {run.stderr.strip()[-500:]}")
    matches = filter(None, map(_SETTING.match, run.stdout.splitlines()))
    # pip lists environment variables last, and they override files.
    return {match[1]: str(ast.literal_eval(match[2])).split() for match in matches}


def find_uv() -> Path | None:
    """The uv on PATH, else the one installed with naiad, else None."""
    found = shutil.which("uv")
    if found is not None:
        return Path(found)
    try:
        with _finding_uv:
            return Path(importlib.import_module("uv").find_uv_bin())
    except (ImportError, AttributeError, FileNotFoundError):
        return None


def uv_command(uv: Path, python: Path, settings: Mapping[str, list[str]]) -> list[str]:
    """The uv command that installs packages with these pip settings."""
    return [
        *(str(uv), "pip", "install", "--python", str(python), "--break-system-packages"),
        # Hard-linked files belong to uv's cache, and rewriting prefixes would change them there.
        *("--link-mode", "copy"),
        *_as_pip(settings),
    ]


def uv_lock_script_command(uv: Path, python: Path, settings: Mapping[str, list[str]]) -> list[str]:
    """The uv command that locks a script, without the script."""
    return [str(uv), "lock", "--python", str(python), *_as_pip(settings)]


def uv_pylock_command(uv: Path, python: Path, settings: Mapping[str, list[str]]) -> list[str]:
    """The uv command that writes a `pylock.toml` for all platforms, without its input and output."""
    return [
        *(str(uv), "pip", "compile", "--python", str(python), "--universal", "--format", "pylock.toml"),
        *("--generate-hashes", "--no-header", "--quiet"),
        *_as_pip(settings),
    ]


def uv_venv_command(uv: Path, python: Path, prefix: Path) -> list[str]:
    """The uv command that creates an empty virtual environment."""
    quiet = ("--no-config", "--no-project", "--no-python-downloads", "--quiet", "--allow-existing")
    return [str(uv), "venv", *quiet, "--python", str(python), str(prefix)]


def _as_pip(settings: Mapping[str, list[str]]) -> list[str]:
    indexes = [f"--default-index={url}" for url in settings.get("index-url", ())]
    indexes += [f"--index={url}" for url in settings.get("extra-index-url", ())]
    indexes += [f"--find-links={place}" for place in settings.get("find-links", ())]
    indexes += [f"--allow-insecure-host={host}" for host in settings.get("trusted-host", ())]
    if settings.get("no-index", ["0"])[-1].lower() in {"1", "true", "yes", "on"}:
        indexes.append("--no-index")
    # pip searches all indexes for the best version; uv's default stops at the first index with the package.
    quiet = ("--no-config", "--no-progress", "--color", "never", "--no-python-downloads")
    return [*quiet, "--index-strategy", _STRATEGY, *indexes]


def uv_environ(environ: Mapping[str, str], settings: Mapping[str, list[str]]) -> dict[str, str]:
    """The environment for uv, with pip's settings of the network that uv reads from variables alone."""
    kept = {name: value for name, value in environ.items() if name not in {"VIRTUAL_ENV", "CONDA_PREFIX"}}
    given = {
        variable: settings[name][-1]
        for name, variables in _OF_NETWORK.items()
        if settings.get(name)
        for variable in variables
    }
    return {**kept, **given}

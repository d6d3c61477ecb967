"""Running an installer for a recipe: which one, where from, how far it is, and what it failed on."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version
from virtualenv.seed.wheels.embed import get_embed_wheel

from naiad.environments.building.base_interpreter import BaseInterpreter
from naiad.environments.building.requirements import Requirements
from naiad.environments.progress import ProgressEvent, ProgressReporter
from naiad.errors import ExecutionEnvironmentError, OptionError

__all__ = [
    "INSTALLERS",
    "InstallOptions",
    "clean_environ",
    "download",
    "find_failed_requirement",
    "find_pip",
    "find_uv",
    "install",
    "install_command",
    "pip_command",
    "pip_settings",
    "run_installer",
    "uv_command",
    "uv_environ",
    "uv_resolve_command",
]

INSTALLERS = ("auto", "pip", "uv")
"""Which may be asked for: `auto` is uv where it is installed."""

_LAST_LINES = 12
_BLAME = (
    re.compile(r"No matching distribution found for (\S+)"),
    re.compile(r"satisfies the requirement (\S+)"),
    re.compile(r"Failed to build '?([A-Za-z0-9._-]+)'?"),
    re.compile(r"Failed building wheel for (\S+)"),
    re.compile(r"Package '?([A-Za-z0-9._-]+)'? requires a different Python"),
    re.compile(r"Invalid requirement: ['\"]?([^'\":]+)"),
    re.compile(r"Cannot install (.+?) because"),
    re.compile(r"DO NOT MATCH THE HASHES.*?^\s+(\S+) from", re.DOTALL | re.MULTILINE),
    # uv's
    re.compile(r"there (?:is|are) no versions? of (\S+)"),
    re.compile(r"Because \S+ was not found.*?you\s+require\s+(\S+)", re.DOTALL),
    re.compile(r"Because (\S+) was not found"),
    re.compile(r"Failed to (?:build|download|fetch|read|parse)(?: metadata for)?:? `([^`]+)`"),
    re.compile(r"Hash mismatch for `([^`]+)`"),
)
_STEPS = ("Collecting ", "Installing ", "Resolved ", "Prepared ", "Installed ")
_DOWNLOADING = re.compile(r"(?:Downloading|Using cached) (\S+)")
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """How packages get into an environment.

    Attributes:
        installer: One of INSTALLERS.
        wheels: Folders of wheels to look in.
        offline: Whether nothing else may be looked at.
    """

    installer: str = "auto"
    wheels: tuple[Path, ...] = ()
    offline: bool = False


def install(
    name: str,
    wanted: Requirements,
    base: BaseInterpreter,
    python: Path,
    options: InstallOptions,
    progress: Callable[[str], None],
    reporter: ProgressReporter,
) -> None:
    """Install requirements into the prefix of `python`.

    Indexes, certificates and the like are those pip is configured for, whichever installer is used.

    Args:
        name: The recipe's.
        wanted: The requirements.
        base: What the interpreter is a copy of.
        python: The interpreter.
        options: How.
        progress: Called with a line for each step.
        reporter: Told how far downloads are.

    Raises:
        ExecutionEnvironmentError: It failed; names the package and ends with the installer's last lines.
        OptionError: The installer that is asked for is not there.
    """
    uv = _uv(options)
    if uv is None:
        command, environ = install_command(find_pip(base), python), clean_environ(os.environ)
    else:
        settings = pip_settings()
        command = uv_command(uv, python, settings)
        environ = uv_environ(clean_environ(os.environ), settings)
    run_installer(name, wanted, [*command, *_places(options, uv)], environ, progress, reporter)


def download(
    name: str,
    wanted: Requirements,
    base: BaseInterpreter,
    folder: Path,
    progress: Callable[[str], None],
    reporter: ProgressReporter,
) -> None:
    """Put the wheels of requirements into a folder, for `install` on machines that reach no index.

    Raises:
        ExecutionEnvironmentError: It failed; names the package and ends with pip's last lines.
    """
    command = [*pip_command(find_pip(base), base.executable, "download"), "--dest", str(folder)]
    run_installer(name, wanted, command, clean_environ(os.environ), progress, reporter)


def run_installer(
    name: str,
    wanted: Requirements,
    command: list[str],
    environ: dict[str, str],
    progress: Callable[[str], None],
    reporter: ProgressReporter,
    *,
    requirements_flag: str = "-r",
) -> None:
    """Run an installer on requirements, whose file is its last argument.

    What it leaves in its temporary folder goes: pip in a wheel copies its certificates there, uv makes locks.

    Raises:
        ExecutionEnvironmentError: It failed.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-install-") as folder:
        file = Path(folder, "requirements.txt")
        file.write_text(wanted.text, encoding="utf-8")
        how = [*(["--no-deps"] if wanted.complete else []), *(["--require-hashes"] if wanted.hashed else [])]
        watch = _Watch(progress, reporter)
        with subprocess.Popen(
            [*command, *how, *filter(None, [requirements_flag]), str(file)],
            env={**environ, "TMPDIR": folder},
            cwd=wanted.named_in.resolve().parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    watch.line(line.rstrip())
            except BaseException:
                process.kill()
                raise
            finally:
                watch.end()
    if process.returncode:
        raise _failure(name, wanted, Path(command[0]).name, watch.lines)


def find_failed_requirement(lines: list[str]) -> str | None:
    """The requirement that an installer's output says it failed on, if it says so."""
    output = "\n".join(lines)
    for pattern in _BLAME:
        match = pattern.search(output)
        if match:
            return match[1].rstrip(",;:")
    return None


def _uv(options: InstallOptions) -> Path | None:
    if options.installer == "pip":
        return None
    uv = find_uv()
    if uv is None and options.installer == "uv":
        raise OptionError("uv is not installed: `pip install uv`, or leave --installer out to use pip")
    return uv


def _places(options: InstallOptions, uv: Path | None) -> list[str]:
    nowhere_else = ["--no-index", *(["--offline"] if uv is not None else [])] if options.offline else []
    return [*nowhere_else, *(f"--find-links={folder.resolve()}" for folder in options.wheels)]


def _failure(name: str, wanted: Requirements, program: str, lines: list[str]) -> ExecutionEnvironmentError:
    what = find_failed_requirement(lines) or "the requirements"
    # Warnings about unused indexes would push out what matters.
    telling = [line for line in lines if line.strip() and not line.startswith("WARNING:")]
    last = "\n  ".join(telling[-_LAST_LINES:])
    who = "uv" if program.startswith("uv") else "pip"
    return ExecutionEnvironmentError(
        f"cannot install {what} for '{name}', named in {wanted.named_in}; {who} said last:\n  {last}"
    )


class _Watch:
    """Reads what an installer prints: steps for people, and how far the file is that it downloads."""

    def __init__(self, progress: Callable[[str], None], reporter: ProgressReporter) -> None:
        self.lines: list[str] = []
        self._progress = progress
        self._reporter = reporter
        self._file = ""
        self._done = self._total = 0
        self._began = 0.0

    def line(self, text: str) -> None:
        """Take note of a line."""
        match = _RAW_PROGRESS.fullmatch(text)
        if match:
            self._done, self._total = int(match[1]), int(match[2])
            self._tell(finished=self._done >= self._total)
            return
        self.lines.append(text)
        if text.startswith(_STEPS):
            self._progress(text.partition(" (from ")[0].strip())
        elif started := _DOWNLOADING.match(text.strip()):
            self.end()
            self._file, self._began = started[1].rsplit("/", 1)[-1], time.monotonic()

    def end(self) -> None:
        """Take a bar away that an interrupted download left."""
        if self._total > self._done:
            self._tell(finished=True)
        self._done = self._total = 0

    def _tell(self, *, finished: bool) -> None:
        event = ProgressEvent(
            step="downloading",
            label="",
            path=Path(self._file),
            done=self._done,
            total=self._total,
            seconds=time.monotonic() - self._began,
            finished=finished,
        )
        self._reporter.on_progress(event)


# A user's settings for other places must not send packages there.
_UNWANTED = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON", "PIP_EDITABLE")
_QUIET = (
    *("--no-input", "--disable-pip-version-check", "--root-user-action", "ignore", "--no-warn-script-location"),
    *("--no-compile", "--no-user"),
)
# Since then pip can tell how far a download is in a way that programs can read.
_FIRST_WITH_RAW_PROGRESS = Version("24.1")
_SETTING = re.compile(r"^[\w:.]+\.([\w-]+)=(.*)$")


def find_pip(base: BaseInterpreter) -> Path:
    """A wheel of pip that runs under an interpreter: of virtualenv, or else the interpreter's own.

    Raises:
        ExecutionEnvironmentError: There is neither.
    """
    wheel = get_embed_wheel("pip", base.minor)
    if wheel is not None:
        return Path(wheel.path)
    own = sorted(base.stdlib.glob("ensurepip/_bundled/pip-*.whl"))
    if own:
        return own[-1]
    raise ExecutionEnvironmentError(
        f"no pip for Python {base.version}: virtualenv brings none for it and {base.stdlib}/ensurepip has none either"
    )


def pip_command(pip: Path, python: Path, verb: str) -> list[str]:
    """How a pip in a wheel is started under an interpreter."""
    return [str(python), "-I", f"{pip}/pip", verb, *(_QUIET if verb == "install" else _QUIET[:2])]


def install_command(pip: Path, python: Path) -> list[str]:
    """How it installs, telling how far it is."""
    return [*pip_command(pip, python, "install"), "--progress-bar", "raw" if _tells_progress(pip) else "off"]


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for an installer: the user's, without those that would lead it elsewhere."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON") and name not in _UNWANTED}
    # Debian's Python would put packages and scripts under <prefix>/local, where nobody looks for scripts.
    return {**kept, "DEB_PYTHON_INSTALL_LAYOUT": "deb"}


def pip_settings() -> dict[str, list[str]]:
    """What the user's settings say about indexes and the like, for installers that do not read them.

    Asked under our own interpreter: one that is being built may be too old, or too bare, for questions.

    Raises:
        ExecutionEnvironmentError: pip does not answer. Going on would mean to ask other indexes than the user's.
    """
    pip = get_embed_wheel("pip", f"{sys.version_info.major}.{sys.version_info.minor}")
    run = subprocess.run(
        [sys.executable, "-I", f"{pip.path if pip is not None else ''}/pip", "config", "list"],
        env=clean_environ(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise ExecutionEnvironmentError(f"pip does not tell its settings: {run.stderr.strip()[-500:]}")
    matches = filter(None, map(_SETTING.match, run.stdout.splitlines()))
    # Variables come last, and win, as with pip.
    return {match[1]: str(ast.literal_eval(match[2])).split() for match in matches}


def _tells_progress(pip: Path) -> bool:
    try:
        return Version(pip.name.split("-")[1]) >= _FIRST_WITH_RAW_PROGRESS
    except (IndexError, InvalidVersion):
        return False


def find_uv() -> Path | None:
    """The uv on PATH, or the one installed beside naiad."""
    found = shutil.which("uv")
    if found is not None:
        return Path(found)
    try:
        return Path(importlib.import_module("uv").find_uv_bin())
    except (ImportError, AttributeError, FileNotFoundError):
        return None


def uv_command(uv: Path, python: Path, settings: Mapping[str, list[str]]) -> list[str]:
    """How it installs what pip would install with these settings."""
    return [
        *(str(uv), "pip", "install", "--python", str(python), "--break-system-packages"),
        # Linked files would be written to in uv's cache when prefixes are mended.
        *("--link-mode", "copy"),
        *_as_pip(settings),
    ]


def uv_resolve_command(uv: Path, minor: str, settings: Mapping[str, list[str]]) -> list[str]:
    """How it tells what would be installed under a Python that need not be here."""
    return [
        *(str(uv), "pip", "compile", "--python-version", minor, "--only-binary", ":all:", "--quiet"),
        *("--generate-hashes", "--no-header", "--no-annotate"),
        *_as_pip(settings),
    ]


def _as_pip(settings: Mapping[str, list[str]]) -> list[str]:
    indexes = [f"--default-index={url}" for url in settings.get("index-url", ())]
    indexes += [f"--index={url}" for url in settings.get("extra-index-url", ())]
    indexes += [f"--find-links={place}" for place in settings.get("find-links", ())]
    indexes += [f"--allow-insecure-host={host}" for host in settings.get("trusted-host", ())]
    if settings.get("no-index", ["0"])[-1].lower() in {"1", "true", "yes", "on"}:
        indexes.append("--no-index")
    # pip looks into all indexes for the best version.
    quiet = ("--no-config", "--no-progress", "--color", "never", "--no-python-downloads")
    return [*quiet, "--index-strategy", "unsafe-best-match", *indexes]


def uv_environ(environ: Mapping[str, str], settings: Mapping[str, list[str]]) -> dict[str, str]:
    """Its variables, with pip's certificates."""
    certificates = settings.get("cert")
    kept = {name: value for name, value in environ.items() if name not in {"VIRTUAL_ENV", "CONDA_PREFIX"}}
    return {**kept, "SSL_CERT_FILE": certificates[-1]} if certificates else kept

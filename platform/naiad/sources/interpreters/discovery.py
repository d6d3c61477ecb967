"""Finding installed Python interpreters, and the newest one of a required version.

Searched are PATH, the folders of pyenv, uv, mise, asdf, conda and micromamba, /opt, and the system's folders. Every
candidate is started once to read its version and numpy; the result is cached until it changes (see `probe`).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.core.blocking import run_each
from naiad.core.errors import ExecutionEnvironmentError, InterpreterNotFoundError
from naiad.sources.interpreters.prefix import find_interpreter_in
from naiad.sources.interpreters.probe import Interpreter, probe_cached
from naiad.sources.interpreters.versions import matches, version_text

_log = logging.getLogger("naiad.environments")
# Concurrent probes: enough to overlap process starts, few enough for a small machine.
_PROBES_AT_ONCE = 4


def candidate_paths(cache: Path, environ: Mapping[str, str] | None = None, home: Path | None = None) -> list[Path]:
    """Paths of all interpreters on PATH and in the usual folders; one path per real file."""
    environ = os.environ if environ is None else environ
    home = _home() if home is None else home
    # An activated venv is a link to its base; both are candidates, since they have different packages.
    activated = activated_interpreters(environ)
    seen: dict[str, Path] = {str(path): path for path in activated}
    for path in (*iterate_installations(environ, home), *_on_path(cache, environ)):
        seen.setdefault(os.path.realpath(path), path)
    return list(seen.values())


def activated_interpreters(environ: Mapping[str, str]) -> list[Path]:
    """The interpreters of the environments that the server's shell has activated."""
    folders = (environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    found = (find_interpreter_in(Path(folder)) for folder in folders if folder)
    return [path for path in found if path is not None]


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # neither HOME nor a passwd entry, as for an arbitrary user id in a container
        return Path("/nonexistent")


def _on_path(cache: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Interpreters that python-discovery finds: on PATH, in uv's store, the host's base.

    Folders named `shims` are skipped: the interpreters of pyenv, mise and asdf are found in their own folders, and the
    shim of an inactive version fails when it is started.
    """
    from python_discovery import DiskCache, iter_interpreters  # here, because most servers do not search

    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    plain = os.pathsep.join(folder for folder in folders if Path(folder).name != "shims")
    cached = DiskCache(cache / "python-discovery")
    for found in iter_interpreters("cpython", cache=cached, env={**environ, "PATH": plain}):
        if found.system_executable:
            yield Path(found.system_executable)


def find_interpreter(
    required: SpecifierSet,
    cache: Path,
    *,
    need_numpy: bool = True,
    origin: str = "",
    paths: Callable[[], Iterable[Path]] | None = None,
) -> Interpreter:
    """An activated environment of a required version, else the newest installed interpreter of that version."""
    found = list_interpreters(cache, paths)
    # The user has chosen an activated environment for its packages; only the version of others matters.
    activated = set(map(str, activated_interpreters(os.environ)))
    matching = sorted(
        (interpreter for interpreter in found if matches(required, interpreter.version)),
        key=lambda interpreter: (str(interpreter.python) in activated, interpreter.version),
        reverse=True,
    )
    usable = [interpreter for interpreter in matching if interpreter.numpy or not need_numpy]
    if not usable:
        raise _not_found(required, found, matching, for_model=need_numpy, origin=origin)
    _log.debug("found %s for Python %s", usable[0], required)
    return usable[0]


def list_interpreters(cache: Path, paths: Callable[[], Iterable[Path]] | None = None) -> list[Interpreter]:
    """All working CPython interpreters of the machine, or of *paths*."""
    candidates = list(paths() if paths is not None else candidate_paths(cache))
    found = run_each(partial(_probe_or_none, cache=cache), candidates, threads=_PROBES_AT_ONCE)
    return [each for each in found if each is not None and each.implementation == "cpython"]


def _probe_or_none(python: Path, cache: Path) -> Interpreter | None:
    try:
        return probe_cached(python, cache)
    except ExecutionEnvironmentError as error:
        _log.debug("skipping an interpreter: %s", error.message)
        return None


def first_minor(required: SpecifierSet) -> str:
    """The oldest minor version, `3.12`, that has a version in a range; empty without one."""
    minors = (minor for minor in _MINORS if any(matches(required, (3, minor, patch)) for patch in range(_PATCHES)))
    return next((f"3.{minor}" for minor in minors), "")


def _versions_of(found: Iterable[Interpreter]) -> str:
    by_version = {one.version: one for one in sorted(found, key=lambda one: one.version, reverse=True)}
    newest, *others = by_version.values() or (None,)
    if newest is None:
        return "none"
    shown = [f"{version_text(newest.version)} at {newest.python}", *(version_text(one.version) for one in others)]
    return ", ".join(shown[:_SHOWN_VERSIONS]) + (", ..." if len(shown) > _SHOWN_VERSIONS else "")


def _not_found(
    required: SpecifierSet, found: list[Interpreter], matching: list[Interpreter], *, for_model: bool, origin: str
) -> InterpreterNotFoundError:
    looked_at = _versions_of(found)
    asked = f" (required by {origin})" if origin else ""
    if matching:
        best = matching[0]
        return InterpreterNotFoundError(
            f"no Python {required} on this machine can run a model{asked}: {len(matching)} of that version "
            f"{'lacks' if len(matching) == 1 else 'lack'} numpy (the newest: {version_text(best.version)} at "
            f"{best.python}: {best.numpy_error}); run `{best.python} -m pip install numpy`, or give the model an "
            f"EXECUTION_ENV_PATH. There are: {looked_at}"
        )
    minor = first_minor(required)
    example = f", for example with `uv python install {minor}`" if minor else ""
    advice = f"install one{example}"
    if for_model:
        advice = "install one with numpy, or give the model an EXECUTION_ENV_PATH"
    return InterpreterNotFoundError(
        f"no Python {required} on this machine{asked}: there are {looked_at} (on PATH, in /usr, /opt and the folders "
        f"of pyenv, uv, mise, asdf and conda); {advice}"
    )


_SHOWN_VERSIONS = 8
_MINORS, _PATCHES = range(8, 30), 40  # of CPython; more than any branch has had
_EXECUTABLE = re.compile(r"python3(\.\d+)?")

# Folders with one installation per sub-folder: variable with the root, default root in the home, sub-folder.
_COLLECTIONS = (
    ("PYENV_ROOT", ".pyenv", "versions"),
    ("UV_PYTHON_INSTALL_DIR", ".local/share/uv/python", "."),
    ("MISE_DATA_DIR", ".local/share/mise", "installs/python"),
    ("ASDF_DATA_DIR", ".asdf", "installs/python"),
    ("MAMBA_ROOT_PREFIX", "micromamba", "envs"),
)
# Names of conda installations, which contain environments too.
_CONDA_NAMES = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "conda", "miniconda", "anaconda")
_SYSTEM = ("/usr/local/bin", "/usr/bin")


def iterate_installations(environ: Mapping[str, str], home: Path, opt: Path = Path("/opt")) -> Iterator[Path]:
    """Interpreters in the usual folders of pyenv, uv, mise, asdf, conda, /opt and the system, newest name first."""
    for folder in _bin_folders(environ, home, opt):
        names = [path for path in _listed(folder) if _EXECUTABLE.fullmatch(path.name)]
        # `python3` and `python3.11` are usually one file; the caller removes duplicates by real path.
        yield from sorted(names, key=lambda path: (len(path.name), path.name), reverse=True)


def _bin_folders(environ: Mapping[str, str], home: Path, opt: Path) -> Iterator[Path]:
    for variable, below_home, inside in _COLLECTIONS:
        root = Path(environ[variable]) if environ.get(variable) else home / below_home
        for installation in _listed(root / inside):
            yield installation / "bin"
    for parent in (home, opt):
        for name in _CONDA_NAMES:
            yield parent / name / "bin"
            for environment in _listed(parent / name / "envs"):
                yield environment / "bin"
    for installation in _listed(opt):
        yield installation / "bin"
        for version in _listed(installation) if installation.name.startswith("python") else ():
            yield version / "bin"
    yield from map(Path, _SYSTEM)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []  # missing or not readable

"""A prepared environment, and the environment variables of its guests.

Guests get the server's variables without those that steer an interpreter or loader, which were set with the server's
Python in mind: a PYTHONPATH with the server's numpy breaks numpy in every environment of another version, as it does in
Triton. Not all are dropped: models read HF_HOME, CUDA_VISIBLE_DEVICES, proxies and secrets. Guests of the server's own
interpreter keep PYTHONPATH: start scripts of public repositories rely on it, and there the packages fit.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from naiad.config.server.access import SERVER_SECRETS
from naiad.environments.activation import NOT_ACTIVATED, Activation
from naiad.environments.store.leases import Lease
from naiad.sources.interpreters.distributions import python_path
from naiad.sources.interpreters.prefix import find_interpreter_in
from naiad.sources.interpreters.versions import PythonVersion, version_text

# Variables of the server that guests do not inherit:
_DROPPED = (
    # Folders with packages for the *host's* Python; a guest of another version crashes if it imports the host's numpy.
    # Set again below for guests of the host's own interpreter.
    "PYTHONPATH",
    # Relocate the standard library; valid for at most one interpreter.
    "PYTHONHOME",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "__PYVENV_LAUNCHER__",
    # For interactive use; PYTHONINSPECT would keep a finished guest alive at a prompt.
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    # Set below.
    "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONNOUSERSITE",
    # A library preloaded into the server may be incompatible with the environment's libraries.
    "LD_PRELOAD",
    # The activation of the host's environment; a guest must not mistake that for its own.
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "CONDA_PROMPT_MODIFIER",
    "CONDA_SHLVL",
    *SERVER_SECRETS,
    # Without it, `python` in a model runs the guest's interpreter instead of the one that pyenv selects for the host.
    "PYENV_VERSION",
)


# What processes need of the server's variables, besides those that are named by `--guest-env`.
_NEEDED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LC_*")


def inherited_variables(base: Mapping[str, str], named: Sequence[str] | None) -> dict[str, str]:
    """The variables of *base* that guests may inherit: what all need, and *named* ones or patterns; None for all."""
    if named is None:
        return dict(base)
    patterns = (*_NEEDED, *named)
    return {name: text for name, text in base.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def withheld_variables(base: Mapping[str, str]) -> Iterator[str]:
    """Warnings about variables that Triton passes to models and naiad does not, each with an alternative."""
    if base.get("PYTHONPATH") and not python_path(base):
        yield (
            f"PYTHONPATH={base['PYTHONPATH']} reaches no model, as this server's interpreter ignores it (a bundle's "
            "always does): put modules beside model.py, or install them in the environment of the model"
        )
    elif base.get("PYTHONPATH"):
        yield (
            f"PYTHONPATH={base['PYTHONPATH']} reaches only models that run under the server's own interpreter: for "
            "models with an environment of their own, put modules beside model.py, install them in that environment, "
            "or name their folder in a .pth file there"
        )
    if base.get("LD_PRELOAD"):
        yield (
            f"LD_PRELOAD={base['LD_PRELOAD']} does not reach models: a model may load libraries itself, with "
            "ctypes.CDLL(PATH, ctypes.RTLD_GLOBAL)"
        )


class ActivatedEnvironment(NamedTuple):
    """An environment, named by *variable*, that the server's shell has activated, and in which the server does not run.

    Triton's stub runs with the libraries of an activated environment that has the stub's Python version. Here, models
    run in it only where something chooses it.
    """

    variable: str
    folder: Path

    def warning_about(self, model: str, python: Path) -> str:
        """A warning that a model runs with another interpreter, *python*; empty if that is the environment's."""
        if os.path.realpath(python.parent) == os.path.realpath(self.folder / "bin"):
            return ""
        return (
            f"{self.variable}={self.folder} is activated and does not reach model '{model}', which runs with {python}: "
            f"pass --backend-config=python,execution-env-path={self.folder} to run all models in it, or name it as "
            "EXECUTION_ENV_PATH of a model"
        )


def activated_environment(base: Mapping[str, str]) -> ActivatedEnvironment | None:
    """The environment that the variables *base* name as activated; None without one, and for the server's own."""
    own = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = base.get(name, "")
        if folder and os.path.realpath(folder) not in own and find_interpreter_in(Path(folder)) is not None:
            return ActivatedEnvironment(name, Path(folder))
    return None


# The variable in which a guest finds the LD_LIBRARY_PATH for processes that its model starts.
_LIBRARY_PATH_OF_CHILDREN = "NAIAD_CHILD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyEnvironment:
    """A checked environment, with facts that its interpreter reported."""

    # Archive or directory named by the user, a string for a URI; None for an installed interpreter.
    source: Path | str | None
    prefix: Path
    python: Path
    version: PythonVersion
    cache_tag: str
    abi: str
    numpy_version: str | None
    digest: str | None = None
    is_host: bool = False
    bytecode: Path | None = None  # folder for bytecode, None if bytecode is beside the sources
    # Folder that the interpreter needs in LD_LIBRARY_PATH to find its libpython, None normally.
    library_path: Path | None = None
    libraries: Path | None = None  # folder with its shared libraries, None if it has none of its own
    user_site: bool = False  # whether it uses the user's site-packages (host only)
    activation: Activation = field(default=NOT_ACTIVATED, hash=False)
    # Lease on its store entry, None if it is not in the store.
    lease: Lease | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        name = "the host's interpreter" if self.is_host else str(self.source or self.python)
        return f"{name} (Python {version_text(self.version)}, numpy {self.numpy_version})"

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The variables of a guest, from those of the server. The launcher adds thread counts (OMP_NUM_THREADS ...)."""
        result = inherited_by_guests(base, self.python, is_host=self.is_host)
        # Packages in the user's home are not part of the environment.
        if not self.user_site:
            result["PYTHONNOUSERSITE"] = "1"
        # Unbuffered, so that the last output of a crashing model reaches the log.
        result["PYTHONUNBUFFERED"] = "1"
        self._set_activation(result)
        self.activation.apply(result)
        self._add_libraries(result)
        self._set_bytecode(result)
        return result

    def _set_bytecode(self, result: dict[str, str]) -> None:
        """Keep `__pycache__` out of model repositories, which are often read-only, shared or under git.

        PYTHONPYCACHEPREFIX makes Python ignore bytecode beside sources (import of numpy: 0.1 s with bytecode, 0.5 s
        without). So it is set only for environments without bytecode; the first guest fills the folder.
        """
        if self.bytecode is None:
            result["PYTHONDONTWRITEBYTECODE"] = "1"
        else:
            result["PYTHONPYCACHEPREFIX"] = str(self.bytecode)

    def _set_activation(self, result: dict[str, str]) -> None:
        """Set the variables of an activated environment: Triton sets VIRTUAL_ENV, conda's tools need the others."""
        is_conda = bool(self.activation.scripts) or (self.prefix / "conda-meta").is_dir()
        if self.source is not None or (self.prefix / "pyvenv.cfg").is_file():
            result["VIRTUAL_ENV"] = str(self.prefix)
        if is_conda:
            result["CONDA_PREFIX"] = str(self.prefix)
            result["CONDA_DEFAULT_ENV"] = str(self.prefix)
            result["CONDA_SHLVL"] = "1"

    def _add_libraries(self, result: dict[str, str]) -> None:
        """Have the guest's loader find the environment's libraries, also for those that name no folder (rpath).

        Programs of the machine that a model starts would fail with these libraries. So the guest restores the variable
        when it has started, which its own loader does not notice.
        """
        folder = self.library_path or self.libraries
        if folder is None:
            return
        before = result.get("LD_LIBRARY_PATH", "")
        if self.library_path is None:  # else its own programs need the folder as well
            result[_LIBRARY_PATH_OF_CHILDREN] = before
        result["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), before)))


def inherited_by_guests(base: Mapping[str, str], python: Path, *, is_host: bool) -> dict[str, str]:
    """The variables of guests before activation, from those of the server that guests may inherit."""
    result = {name: value for name, value in base.items() if name not in _DROPPED}
    if is_host and (path := python_path(base)):
        # The server itself has imported with it, and this is the same interpreter with the same packages.
        result["PYTHONPATH"] = path
    # Programs that a model starts, such as `python` or `ffmpeg`, come from its environment first.
    result["PATH"] = os.pathsep.join((str(python.parent), base.get("PATH") or os.defpath))
    if not is_host:
        # Without folders of the host's Python; others, such as CUDA's, stay.
        inherited = [entry for entry in result.pop("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
        entries = [entry for entry in inherited if not _belongs_to_a_python(Path(entry))]
        if entries:
            result["LD_LIBRARY_PATH"] = os.pathsep.join(entries)
    return result


def own_libraries(prefix: Path) -> Path | None:
    """The folder with the shared libraries of an environment; None if it has none beside libpython, as a venv."""
    with contextlib.suppress(OSError), os.scandir(prefix / "lib") as found:
        if any(".so" in entry.name and not entry.name.startswith("libpython") for entry in found):
            return prefix / "lib"
    return None


def _belongs_to_a_python(folder: Path) -> bool:
    """Whether a library folder belongs to a Python: it contains a libpython, or is in the host's prefix."""
    for prefix in (Path(sys.prefix), Path(sys.base_prefix)):
        # /usr and /usr/local are shared with other programs.
        if prefix not in (Path("/usr"), Path("/usr/local")) and folder.is_relative_to(prefix):
            return True
    return any(folder.glob("libpython3*.so*"))

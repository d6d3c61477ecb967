"""An environment a guest can be started in, and the variables it is started with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from naiad import json_cache
from naiad.environments.store.leases import Lease
from naiad.interpreters.versions import PythonVersion, version_text

# Dropped from every guest:
_DROPPED = (
    # Names folders with packages for the *host's* Python; a 3.9 guest that finds the host's numpy there dies.
    "PYTHONPATH",
    # Moves the standard library itself; right for one interpreter at most.
    "PYTHONHOME",
    "PYTHONPLATLIBDIR",
    "PYTHONEXECUTABLE",
    "__PYVENV_LAUNCHER__",
    # For people at a prompt; PYTHONINSPECT would keep a finished guest waiting for one.
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    # Set anew below.
    "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONNOUSERSITE",
    # A library forced into the server is built against the server's world.
    "LD_PRELOAD",
    # The host's own activation: a guest must not take the host's environment for its own.
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "CONDA_PROMPT_MODIFIER",
    "CONDA_SHLVL",
    # Lets a `python` started by the model go to the guest's bin, not to what pyenv's shims were told for the host.
    "PYENV_VERSION",
)


def withheld_variables(base: Mapping[str, str]) -> Iterator[str]:
    """Say which of the server's variables Triton's models would get, and what to do instead, as no model gets them."""
    if base.get("PYTHONPATH"):
        yield (
            f"PYTHONPATH={base['PYTHONPATH']} does not reach models: put modules beside model.py, install them in the "
            "environment of the model, or name their folder in a .pth file there"
        )
    if base.get("LD_PRELOAD"):
        yield (
            f"LD_PRELOAD={base['LD_PRELOAD']} does not reach models: a model may load libraries itself, with "
            "ctypes.CDLL(PATH, ctypes.RTLD_GLOBAL)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyEnvironment:
    """Where a guest's interpreter and packages are; everything was checked and the interpreter was asked.

    Attributes:
        source: What the user named: an archive or a directory, as text if it lies elsewhere; None for an interpreter
            of the machine.
        prefix: The folder that holds it; of an archive, its place in the store.
        python: The interpreter to start.
        version: Its version.
        cache_tag: As in names of bytecode files, `cpython-310`.
        abi: As in names of extension modules, `cpython-310-x86_64-linux-gnu`.
        numpy_version: Version of its numpy.
        digest: SHA-256 of the archive, None for anything else.
        is_host: Whether it is the host's own interpreter, with the host's packages.
        bytecode: Folder for bytecode, None where all that matters has bytecode beside it already.
        library_path: Folder the interpreter needs in LD_LIBRARY_PATH to find its own libpython, None normally.
        user_site: Whether packages of the user's site belong to it (host only).
        lease: What keeps it in the store, None for what is not there.
    """

    source: Path | str | None
    prefix: Path
    python: Path
    version: PythonVersion
    cache_tag: str
    abi: str
    numpy_version: str | None
    digest: str | None = None
    is_host: bool = False
    bytecode: Path | None = None
    library_path: Path | None = None
    user_site: bool = False
    lease: Lease | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        what = "the host's interpreter" if self.is_host else str(self.source or self.python)
        return f"{what} (Python {version_text(self.version)}, numpy {self.numpy_version})"

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """Build a guest's variables from the server's. Thread counts (OMP_NUM_THREADS ...) are the launcher's."""
        result = {name: value for name, value in base.items() if name not in _DROPPED}
        # `pip`, `ffmpeg`, `python` started by a model: those of its environment first.
        result["PATH"] = os.pathsep.join((str(self.python.parent), base.get("PATH") or os.defpath))
        # Packages in somebody's home are no part of an environment that was built to be whole.
        if not self.user_site:
            result["PYTHONNOUSERSITE"] = "1"
        # What a model prints has to be in the log when it dies, not in a buffer that died with it.
        result["PYTHONUNBUFFERED"] = "1"
        result.update(self._variables())
        self._set_bytecode(result)
        self._set_activation(result)
        self._set_library_path(result)
        return result

    def _variables(self) -> dict[str, str]:
        """Those that conda, or the recipe it was built from, keeps with the environment."""
        if self.source is None:
            return {}
        state = json_cache.read(self.prefix / "conda-meta" / "state")
        variables = state.get("env_vars") if state is not None else None
        return {str(name): str(value) for name, value in variables.items()} if isinstance(variables, dict) else {}

    def _set_bytecode(self, result: dict[str, str]) -> None:
        """Keep `__pycache__` out of model repositories, which are often read-only, shared or under git.

        A prefix makes Python ignore the bytecode beside the sources as well (import of numpy: 0.1 s with, 0.5 s
        without), so it is used only where there is none to ignore; it fills with the first guest.
        """
        if self.bytecode is None:
            result["PYTHONDONTWRITEBYTECODE"] = "1"
        else:
            result["PYTHONPYCACHEPREFIX"] = str(self.bytecode)

    def _set_activation(self, result: dict[str, str]) -> None:
        """What `activate` would set: the reference sets VIRTUAL_ENV for any environment; conda tools want theirs."""
        is_conda = (self.prefix / "conda-meta").is_dir()
        if self.source is not None or (self.prefix / "pyvenv.cfg").is_file():
            result["VIRTUAL_ENV"] = str(self.prefix)
        if is_conda:
            result["CONDA_PREFIX"] = str(self.prefix)
            result["CONDA_DEFAULT_ENV"] = str(self.prefix)
            result["CONDA_SHLVL"] = "1"

    def _set_library_path(self, result: dict[str, str]) -> None:
        """Let no library of the host's Python into a foreign one; keep CUDA's and whatever else is in there."""
        if self.is_host:
            return
        inherited = [entry for entry in result.pop("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
        entries = [str(self.library_path)] if self.library_path else []
        entries += [entry for entry in inherited if not _belongs_to_a_python(Path(entry))]
        if entries:
            result["LD_LIBRARY_PATH"] = os.pathsep.join(entries)


def _belongs_to_a_python(folder: Path) -> bool:
    """Whether a library folder is part of some Python: it holds a libpython, or lies in the host's prefix."""
    for prefix in (Path(sys.prefix), Path(sys.base_prefix)):
        # /usr and /usr/local are everybody's.
        if prefix not in (Path("/usr"), Path("/usr/local")) and folder.is_relative_to(prefix):
            return True
    return any(folder.glob("libpython3*.so*"))

"""Where interpreters usually lie. Pure of starting any: just paths that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_EXECUTABLE = re.compile(r"python3(\.\d+)?")

# Folders that hold one installation per subfolder, below the variable if it is set, else below the home.
_COLLECTIONS = (
    ("PYENV_ROOT", ".pyenv", "versions"),
    ("UV_PYTHON_INSTALL_DIR", ".local/share/uv/python", "."),
    ("MISE_DATA_DIR", ".local/share/mise", "installs/python"),
    ("ASDF_DATA_DIR", ".asdf", "installs/python"),
    ("MAMBA_ROOT_PREFIX", "micromamba", "envs"),
)
# Installations with environments of their own below them.
_CONDA_NAMES = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "conda", "miniconda", "anaconda")
_SYSTEM = ("/usr/local/bin", "/usr/bin")


def installations(environ: Mapping[str, str], home: Path, opt: Path = Path("/opt")) -> Iterator[Path]:
    """Interpreters in the usual folders of pyenv, uv, mise, asdf, conda, /opt and the system, newest name first."""
    for folder in _bin_folders(environ, home, opt):
        names = [path for path in _listed(folder) if _EXECUTABLE.fullmatch(path.name)]
        # `python3` and `python3.11` are mostly one file; the caller sees that by following them.
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
        return []  # not there, or not ours to read: no interpreters for us

"""Finds a pip for an interpreter, which need not have one itself.

virtualenv brings pip as wheels. Python can run a wheel as it is, but would compile all modules of pip at each start,
which takes longer than most installations. So the wheel is unpacked once into the user's cache, where Python keeps the
bytecode beside the modules.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import platformdirs
from filelock import FileLock
from virtualenv.seed.wheels.embed import get_embed_wheel

from naiad.core.errors import ExecutionEnvironmentError
from naiad_building.base_interpreter import BaseInterpreter

__all__ = ["find_pip", "unpacked_pip"]

_MARKER = "UNPACKED"


def find_pip(base: BaseInterpreter) -> Path:
    """A folder, or a wheel, that holds a pip that runs under an interpreter: virtualenv's, else the interpreter's own.

    Raises:
        ExecutionEnvironmentError: If there is neither.
    """
    wheel = get_embed_wheel("pip", base.minor)
    if wheel is not None:
        return unpacked_pip(Path(wheel.path))
    own = sorted(base.stdlib.glob("ensurepip/_bundled/pip-*.whl"))
    if own:
        return unpacked_pip(own[-1])
    raise ExecutionEnvironmentError(
        f"no pip for Python {base.version}: virtualenv brings none for it and {base.stdlib}/ensurepip has none either"
    )


def unpacked_pip(wheel: Path) -> Path:
    """The folder that a wheel of pip is unpacked to in the user's cache; the wheel if that cannot be written."""
    # With the size, because distributions change pip and keep its version.
    name = f"{wheel.stem}-{wheel.stat().st_size}"
    folder = platformdirs.user_cache_path("naiad", appauthor=False) / "pip" / name
    marker = folder / _MARKER
    try:
        if not marker.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f"{name}.lock")):
                if not marker.exists():  # another thread or process may have written them meanwhile, and runs them now
                    # Files of a process that was killed may be there: they are written again.
                    with zipfile.ZipFile(wheel) as archive:
                        archive.extractall(folder)
                    marker.touch()
    except (OSError, NotImplementedError):  # the latter on file systems without locks
        return wheel
    return folder

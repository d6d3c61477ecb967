"""Asking an interpreter what it is: once, in a clean environment, with a time limit, remembered until it changes."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from naiad import json_cache
from naiad.errors import ExecutionEnvironmentError
from naiad.interpreters.scripts import run_script
from naiad.interpreters.versions import PythonVersion, version_text

_log = logging.getLogger("naiad.environments")
_SCRIPT = Path(__file__).with_name("_probe_script.py")
_MARK = "naiad-probe:"
# Importing numpy from a cold network file system has been seen to take ten seconds; a minute means it hangs.
TIME_LIMIT = 60.0
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """What an interpreter said of itself.

    Attributes:
        python: The executable that was asked. Not resolved: a venv's link *is* the venv.
        version: As of `sys.version_info[:3]`.
        implementation: `cpython`, `pypy`.
        cache_tag: As in names of bytecode files, `cpython-310`.
        abi: As in names of extension modules, `cpython-310-x86_64-linux-gnu`.
        prefix: Its `sys.prefix`.
        base_prefix: Its `sys.base_prefix`; differs from prefix in a venv.
        bits: Size of a pointer.
        platform: As of `sysconfig.get_platform()`.
        libpython: The shared libpython it maps, None if it is linked in.
        site_dirs: Where its packages lie.
        numpy: Version of its numpy, None if it has none that can be imported.
        numpy_error: Why not.
        has_bytecode: Whether everything the probe imported had usable bytecode beside it.
    """

    python: Path
    version: PythonVersion
    implementation: str
    cache_tag: str
    abi: str
    prefix: Path
    base_prefix: Path
    bits: int
    platform: str
    libpython: str | None
    site_dirs: tuple[str, ...]
    numpy: str | None
    numpy_error: str | None
    has_bytecode: bool

    def __str__(self) -> str:
        has = f"numpy {self.numpy}" if self.numpy else "no numpy"
        return f"{self.implementation} {version_text(self.version)} at {self.python} ({has})"

    def as_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        plain = asdict(self)
        return {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Interpreter:
        """The reverse of `as_json`.

        Raises:
            KeyError, TypeError, ValueError: If the object is not what `as_json` writes.
        """
        first, second, third = value["version"]
        paths = {name: Path(value[name]) for name in ("python", "prefix", "base_prefix")}
        return cls(**{**value, **paths, "version": (first, second, third), "site_dirs": tuple(value["site_dirs"])})


def probe_interpreter(
    python: Path, *, library_path: Path | None = None, bytecode: Path | None = None, time_limit: float = TIME_LIMIT
) -> Interpreter:
    """Start an interpreter and let it say what it is.

    Args:
        python: The executable.
        library_path: Folder for LD_LIBRARY_PATH, for an interpreter that does not find its own libpython.
        bytecode: Folder that keeps the bytecode of what is imported; without it none is written.
        time_limit: Seconds it may take.

    Raises:
        ExecutionEnvironmentError: If it does not start, hangs or answers nonsense; ends with its last words.
    """
    options = ["-I", "-X", f"pycache_prefix={bytecode}"] if bytecode else ["-I", "-B"]
    answer = run_script(
        python,
        _SCRIPT,
        mark=_MARK,
        options=options,
        library_path=library_path,
        time_limit=time_limit,
    )
    try:
        return Interpreter.from_json({**answer, "python": str(python)})
    except (KeyError, TypeError, ValueError) as error:
        raise ExecutionEnvironmentError(f"{python} does not work: its answer cannot be read ({error})") from error


def probe_cached(python: Path, cache: Path) -> Interpreter:
    """Like `probe_interpreter`, cached until the interpreter or its package folders change."""
    file = cache / json_cache.name_for(str(python))
    known = json_cache.read(file)
    if known is not None and known.get("format") == _FORMAT and _unchanged(known.get("seen")):
        try:
            return Interpreter.from_json(known["interpreter"])
        except (KeyError, TypeError, ValueError):
            _log.debug("%s is not readable; asking %s again", file, python)
    found = probe_interpreter(python)
    seen = {str(path): _stamp(path) for path in _watched(found)}
    try:
        json_cache.write(file, {"format": _FORMAT, "seen": seen, "interpreter": found.as_json()})
    except OSError as error:
        _log.debug("cannot remember what %s is: %s", python, error)
    return found


def _watched(found: Interpreter) -> list[Path]:
    """Files and folders whose change means that the interpreter has to be asked again.

    Installing, removing or upgrading a package changes its `site-packages` folder's own mtime.
    """
    return [
        found.python,
        Path(os.path.realpath(found.python)),
        found.prefix / "pyvenv.cfg",
        *map(Path, found.site_dirs),
    ]


def _stamp(path: Path) -> list[int]:
    try:
        facts = path.stat()
    except OSError:
        return []
    return [facts.st_mtime_ns, facts.st_size, facts.st_ino]


def _unchanged(seen: Any) -> bool:
    return isinstance(seen, dict) and bool(seen) and all(_stamp(Path(path)) == stamp for path, stamp in seen.items())

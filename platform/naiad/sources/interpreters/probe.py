"""Probing an interpreter: starting it once, in a clean environment with a time limit, to read facts about it.

The facts are cached until the interpreter or the folders of its packages change.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.real_paths import real_path
from naiad.sources.interpreters.scripts import run_script
from naiad.sources.interpreters.versions import PythonVersion, version_text

_log = logging.getLogger("naiad.environments")
_SCRIPT = Path(__file__).with_name("_probe_script.py")
_MARK = "naiad-probe:"
# Seconds. Importing numpy from a cold network file system took ten seconds; after a minute it hangs.
TIME_LIMIT = 60.0
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """Facts that an interpreter reported about itself."""

    python: Path  # The executable. Not resolved: the path of the link determines the venv.
    version: PythonVersion
    implementation: str
    cache_tag: str
    abi: str
    prefix: Path
    base_prefix: Path
    bits: int
    platform: str
    libpython: str | None  # the shared libpython in use, None if linked statically
    site_dirs: tuple[str, ...]
    numpy: str | None
    numpy_error: str | None
    has_bytecode: bool  # whether at least nine of ten modules imported by the probe had usable bytecode

    def __str__(self) -> str:
        has = f"numpy {self.numpy}" if self.numpy else "no numpy"
        return f"{self.implementation} {version_text(self.version)} at {self.python} ({has})"

    def as_json(self) -> dict[str, Any]:
        plain = asdict(self)
        return {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Interpreter:
        first, second, third = value["version"]
        paths = {name: Path(value[name]) for name in ("python", "prefix", "base_prefix")}
        return cls(**{**value, **paths, "version": (first, second, third), "site_dirs": tuple(value["site_dirs"])})


def probe_interpreter(
    python: Path, *, library_path: Path | None = None, bytecode: Path | None = None, time_limit: float = TIME_LIMIT
) -> Interpreter:
    """Start an interpreter and return the facts it reports.

    Args:
        bytecode: Folder for bytecode of imported modules; None to write none.

    Raises:
        ExecutionEnvironmentError: If it does not start, hangs, or prints invalid output; contains its last lines.
    """
    options = ["-I", "-X", f"pycache_prefix={bytecode}"] if bytecode else ["-I", "-B"]
    output = run_script(
        python,
        _SCRIPT,
        mark=_MARK,
        options=options,
        library_path=library_path,
        time_limit=time_limit,
    )
    try:
        return Interpreter.from_json({**output, "python": str(python)})
    except (KeyError, TypeError, ValueError) as error:
        raise ExecutionEnvironmentError(f"{python} does not work: its output is invalid ({error})") from error


def probe_cached(python: Path, cache: Path) -> Interpreter:
    """Like `probe_interpreter`, cached until the interpreter or its package folders change."""
    file = cache / json_cache.name_for(str(python))
    known = json_cache.read(file)
    if known is not None and known.get("format") == _FORMAT and _is_unchanged(known.get("seen")):
        try:
            return Interpreter.from_json(known["interpreter"])
        except (KeyError, TypeError, ValueError):
            _log.debug("%s is invalid; probing %s again", file, python)
    found = probe_interpreter(python)
    stamps = {str(path): _stamp(path) for path in _watched(found)}
    try:
        json_cache.write(file, {"format": _FORMAT, "seen": stamps, "interpreter": found.as_json()})
    except OSError as error:
        _log.debug("cannot cache facts about %s: %s", python, error)
    return found


def _watched(found: Interpreter) -> list[Path]:
    """Files and folders whose change invalidates the cached facts.

    Installing, removing or upgrading a package changes the mtime of its `site-packages` folder.
    """
    return [
        found.python,
        real_path(found.python),
        found.prefix / "pyvenv.cfg",
        *map(Path, found.site_dirs),
    ]


def _stamp(path: Path) -> list[int]:
    try:
        facts = path.stat()
    except OSError:
        return []
    return [facts.st_mtime_ns, facts.st_size, facts.st_ino]


def _is_unchanged(seen: Any) -> bool:
    return isinstance(seen, dict) and bool(seen) and all(_stamp(Path(path)) == stamp for path, stamp in seen.items())

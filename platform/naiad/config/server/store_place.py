"""Where environments are unpacked: what is named, else the user's cache, else a private folder for temporary files.

The last is for users without a home that they can write to: numbers that containers and services are started with.
Others may write to the folder around it, so it must be the user's own and closed to others, or what a guest runs could
be theirs.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from naiad.errors import OptionError

__all__ = ["StorePlace", "find_store"]

_PRIVATE = 0o700
_ADVICE = "name a directory that can be written with --env-store or NAIAD_STORE"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where the store is.

    Attributes:
        path: Its folder, which need not be there yet.
        warning: What is to be said about that; empty for nothing.
    """

    path: Path
    warning: str = ""


def find_store(named: str, environ: Mapping[str, str]) -> StorePlace:
    """The store of environments: the one named, else that of NAIAD_STORE, else one in the user's cache.

    Where that cannot be written, one among the temporary files.

    Raises:
        OptionError: If it depends on the user's home and there is none, or the last resort is not the user's own.
    """
    named = named or environ.get("NAIAD_STORE", "")
    try:
        if named:
            return StorePlace(Path(named).expanduser().absolute())
        cache = platformdirs.user_cache_path("naiad", appauthor=False) / "environments"
    except RuntimeError:  # neither HOME nor an entry in the password file, as a container's user of any number
        where = f"'{named}' is below a home" if named else "the store of environments is in the user's cache"
        problem = f"{where}, and user {os.getuid()} has no home directory"
        fallback = None if named else _fallback()
        if fallback is None:
            raise OptionError(f"{problem}; {_ADVICE}") from None
        return StorePlace(fallback, _warning(problem, fallback))
    if not _is_writable(cache) and (fallback := _fallback()) is not None:
        return StorePlace(fallback, _warning(f"the store of environments cannot be written at {cache}", fallback))
    return StorePlace(cache)


def _warning(problem: str, fallback: Path) -> str:
    return f"{problem}: it is {fallback} instead, which may be gone after a restart; {_ADVICE}"


def _is_writable(folder: Path) -> bool:
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _fallback() -> Path | None:
    """A folder of the user's own among the temporary files; None if there can be none.

    Raises:
        OptionError: If something there has its name that somebody else made, or can change.
    """
    try:
        private = Path(tempfile.gettempdir()) / f"naiad-{os.geteuid()}"
        with contextlib.suppress(FileExistsError):
            private.mkdir(mode=_PRIVATE)
        status = private.lstat()  # of the name itself: a link may lead anywhere
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        flaw = "is no directory"
    elif status.st_uid != os.geteuid():
        flaw = f"belongs to user {status.st_uid}"
    elif status.st_mode & ~_PRIVATE & 0o777:
        flaw = f"is open to others (mode {stat.S_IMODE(status.st_mode):o}, not {_PRIVATE:o})"
    else:
        return private / "environments"
    raise OptionError(f"the store of environments cannot be {private}, which {flaw}; {_ADVICE}")

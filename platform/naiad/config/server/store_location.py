"""Where environments are unpacked: the named directory, else the user's cache, else a private temporary directory.

The temporary directory is for users without a writable home, such as the numeric user ids of containers and services.
Its parent, `/tmp`, is writable for all users. So it must belong to the user and be closed to others: otherwise another
user could replace the code that guests run. Nothing is created here; `environments.store.opening` does that.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from naiad.core.errors import OptionError

PRIVATE_MODE = 0o700  # the mode of the folder that has the store among temporary files
_ADVICE = "name a directory that can be written with --env-store or NAIAD_STORE"


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The directory of the environment store."""

    path: Path
    warning: str = ""


def find_store(named: str, environ: Mapping[str, str]) -> StoreLocation:
    """Locate the environment store: *named*, else NAIAD_STORE, else in the user's cache.

    Where the cache is not writable, the store is a private temporary directory.

    Raises:
        OptionError: If the location depends on a home directory that the user lacks, or the temporary directory is
            not private.
    """
    named = named or environ.get("NAIAD_STORE", "")
    try:
        if named:
            return StoreLocation(Path(named).expanduser().absolute())
        cache = platformdirs.user_cache_path("naiad", appauthor=False) / "environments"
    except RuntimeError:  # neither HOME nor an entry in the password file, as with a container's numeric user
        where = f"'{named}' is below a home" if named else "the store of environments is in the user's cache"
        problem = f"{where}, and user {os.getuid()} has no home directory"
        fallback = None if named else _fallback()
        if fallback is None:
            raise OptionError(f"{problem}; {_ADVICE}") from None
        return StoreLocation(fallback, _warning(problem, fallback))
    if not _is_writable(cache) and (fallback := _fallback()) is not None:
        return StoreLocation(fallback, _warning(f"the store of environments cannot be written at {cache}", fallback))
    return StoreLocation(cache)


def guest_directory(store: Path) -> Path:
    """The directory in which the default guest is laid out, beside the environments of a store."""
    return store / "guests"


def _warning(problem: str, fallback: Path) -> str:
    return f"{problem}: it is {fallback} instead, which may be gone after a restart; {_ADVICE}"


def _is_writable(folder: Path) -> bool:
    # Path.exists raises below a folder that this user may not enter, such as the home of another one.
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - see above
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _fallback() -> Path | None:
    """The store among temporary files, None if it cannot be created; OptionError if another user can write to it."""
    try:
        store = private_store()
    except OSError:
        return None
    try:
        require_private(store.parent)
    except FileNotFoundError:
        return store if _is_writable(store.parent) else None
    except OSError:
        return None
    return store


def private_store() -> Path:
    """The store of this user among temporary files; its parent is for this user alone."""
    return Path(tempfile.gettempdir()) / f"naiad-{os.geteuid()}" / "environments"


def require_private(folder: Path) -> None:
    """Check that a folder belongs to this user alone."""
    status = folder.lstat()  # `stat` would follow a link that another user made
    if not stat.S_ISDIR(status.st_mode):
        flaw = "is not a directory"
    elif status.st_uid != os.geteuid():
        flaw = f"belongs to user {status.st_uid}"
    elif status.st_mode & ~PRIVATE_MODE & 0o777:
        flaw = f"is open to others (mode {stat.S_IMODE(status.st_mode):o}, not {PRIVATE_MODE:o})"
    else:
        return
    raise OptionError(f"the store of environments cannot be {folder}, which {flaw}; {_ADVICE}")

"""Why a store cannot be used as another user has left it: the place, whose it is, and what to do.

The files of a store have the modes that the umask of their user allows, as those of pip and conda have. So what a user
with the umask 077 puts there is for that user alone, and servers of others say so.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.real_paths import real_path


def require_readable(path: Path, root: Path) -> None:
    """Reject a path that this user may not read; one that does not exist is accepted."""
    if (denied := denial(path, root)) is not None:
        raise denied


@contextmanager
def explained(root: Path) -> Iterator[None]:
    """A context in which failures of the system with files of a store become `store_error`."""
    try:
        yield
    except OSError as error:
        path = error.filename
        if isinstance(path, (str, Path)) and Path(path).absolute().is_relative_to(root):
            raise store_error(root, error) from error
        raise


@contextmanager
def store_errors(root: Path) -> Iterator[None]:
    """A context in which each failure of the system becomes a `store_error`."""
    try:
        yield
    except OSError as error:
        raise store_error(root, error) from error


def store_error(root: Path, error: OSError) -> ExecutionEnvironmentError:
    """The error for a failure of the system in a store: what may not be read, or cannot be written."""
    is_denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    place = Path(error.filename) if isinstance(error.filename, (str, Path)) else root
    if is_denied and (denied := denial(place, root)) is not None:
        return denied
    why = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
    if is_denied and may_not_write(root) and os.path.isdir(root):  # noqa: PTH112 - Path.is_dir may raise
        return ExecutionEnvironmentError(
            f"cannot put an environment into the store at {root}: {why}; this server may only use what is there: add "
            "it with `naiad env prefetch` as a user who may write there, or name another store with --env-store"
        )
    return ExecutionEnvironmentError(
        f"cannot use the store of environments at {root}: {why}; choose another folder or correct its permissions"
    )


def may_not_write(root: Path) -> bool:
    """Whether this user may not put anything into a store."""
    return not os.access(root, os.W_OK)


def denial(path: Path, root: Path) -> ExecutionEnvironmentError | None:
    """The error that this user may not read a path of the store in *root*; None if it may, or if nothing is there."""
    closed = _closed_place(path)
    if closed is None:
        return None
    facts = closed.stat()
    opened = f"chmod -R a+rX {root}" if closed.is_relative_to(real_path(root)) else f"chmod a+rX {closed}"
    return ExecutionEnvironmentError(
        f"cannot use the store of environments at {root}: {closed} belongs to user {facts.st_uid} (mode "
        f"{stat.S_IMODE(facts.st_mode):o}), and this is user {os.geteuid()}, who may not read it; as its owner, run "
        f"`{opened}` and fill the store with umask 022, or name another store with --env-store"
    )


def _closed_place(path: Path) -> Path | None:
    """The first folder on a path that this user may not enter, or the path itself if it may not be read; else None."""
    if _may_read(
        path
    ):  # as it almost always is: looking at each folder takes 0.3 ms, and each load asks for three paths
        return None
    path = real_path(path)
    for folder in reversed(path.parents):
        if not os.access(folder, os.X_OK):
            return folder if os.path.isdir(folder) else None  # noqa: PTH112 - Path.is_dir may raise
    return path if os.path.lexists(path) and not _may_read(path) else None


def _may_read(path: Path) -> bool:
    return os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0))  # noqa: PTH112 - Path.is_dir may raise

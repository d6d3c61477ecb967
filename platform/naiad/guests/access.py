"""Why another user cannot read a file: by the mode bits of the file and of the folders above it."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

from naiad.config.server.guest_user import GuestUser
from naiad.core.real_paths import real_path

_ROOT = 0


def describe_denied_access(user: GuestUser, paths: Iterable[Path]) -> str:
    """The first of *paths* that *user* cannot read, in words, with what to do; "" if it can read all.

    Access control lists are not considered. So this explains a failure, and must not cause one.
    """
    for path in paths:
        denied = _denied(user, path.absolute())
        if denied is not None:
            facts = denied.stat()
            right = "enter" if stat.S_ISDIR(facts.st_mode) else "read"
            return (
                f"may not {right} {denied} ({stat.filemode(facts.st_mode)}, owner {facts.st_uid}:{facts.st_gid}), "
                f"which it needs for {path}; change its permissions, or put it elsewhere (--env-store, "
                "--model-repository)"
            )
    return ""


def _denied(user: GuestUser, path: Path) -> Path | None:
    try:
        path = real_path(path)
        for folder in reversed(path.parents):
            if not _has(user, folder, stat.S_IXOTH):
                return folder
        bits = stat.S_IROTH | stat.S_IXOTH if path.is_dir() else stat.S_IROTH
        return None if _has(user, path, bits) else path
    except OSError:
        return None  # it is missing, which is another error


def _has(user: GuestUser, path: Path, bits: int) -> bool:
    facts = path.stat()
    if user.uid == _ROOT:
        return True
    if facts.st_uid == user.uid:
        bits <<= 6
    elif facts.st_gid == user.gid:
        bits <<= 3
    return facts.st_mode & bits == bits

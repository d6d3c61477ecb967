"""Paths without links, where the text of a link may lead elsewhere than the kernel does.

The link `root` of a process in `/proc` leads into the mount namespace of that process, while its text is `/`: what
`os.path.realpath` makes of it does not exist here, or is another file. KServe's modelcars mount a model as a link to
`/proc/PID/root/models`.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_MAX_LINKS = 40  # as the kernel's


def real_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path without links, as `os.path.realpath`, but always one that leads to the same file; blocks.

    A link of `/proc` whose text is the path of another namespace stays in it.
    """
    rest = [*reversed(Path(path).absolute().parts[1:])]
    found, links = Path("/"), 0
    while rest:
        name = rest.pop()
        step = found / name
        if name == "..":
            found = step if _is_other(step, found.parent) else found.parent
            continue
        try:
            text = os.readlink(step)  # noqa: PTH115 - Path collapses the text
        except OSError:
            found = step
            continue
        links += 1
        if links > _MAX_LINKS or _is_magic(step, text):
            found = step
            continue
        target = Path(text)
        rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        found = Path("/") if target.is_absolute() else found
    return found


def lasting_path(path: Path) -> Path:
    """The path to open now and later: without links, so that a changed link does not change the file; blocks.

    It is the path as named, made absolute, if that leads into another namespace: a modelcar that restarts has another
    process, and only the link that was named is changed with it.
    """
    real = real_path(path)
    return real if str(real) == os.path.realpath(path) else path.absolute()


def _is_magic(link: Path, text: str) -> bool:
    """Whether the kernel follows a link elsewhere than its text says."""
    if text.startswith("/") and link.lstat().st_dev == _proc_device():
        return True  # even where both are one folder: its mounts may differ
    return _is_other(link, link.parent / text)


def _is_other(path: Path, other: Path) -> bool:
    """Whether *path* exists and *other* is not the same file."""
    try:
        facts = path.stat()
    except OSError:
        return False
    try:
        return not os.path.samestat(facts, other.stat())
    except OSError:
        return True


@cache
def _proc_device() -> int:
    try:
        return Path("/proc/self").lstat().st_dev
    except OSError:
        return -1

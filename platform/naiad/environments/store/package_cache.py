"""Unpacked conda packages in a store: entries have hard links to their files, and packing an entry reads them.

    <root>/conda-packages/<name>-<version>-<build>/    an unpacked package

While packages are installed, a process has a shared lock on the folder; packages that no entry has are removed under
an exclusive one. A package is unpacked in a folder whose name begins with a dot, and renamed when it is whole; what a
killed process was unpacking is removed by the next that installs packages.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from naiad.core.foreign_json import read_json
from naiad.environments.store.file_locks import shared_lock, try_exclusive_lock

_FOLDER = "conda-packages"
_LOCK = ".naiad.lock"


def conda_packages(root: Path) -> Path:
    """The folder of conda packages in a store."""
    return root / _FOLDER


@contextmanager
def package_cache(folder: Path) -> Iterator[None]:
    """Keep the packages in a folder, which is created, while some of them are installed; removes half-unpacked ones."""
    with try_exclusive_lock(folder / _LOCK) as is_locked:
        # Of killed processes: a running one has a shared lock. What cannot be removed is left to garbage collection.
        for path in folder.glob(".*") if is_locked else ():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
    with shared_lock(folder / _LOCK):
        yield


def unused_packages(root: Path) -> list[Path]:
    """The packages that no entry of a store was made from."""
    folder = conda_packages(root)
    if not folder.is_dir():
        return []
    used = {name for record in root.glob("*/env/conda-meta/*.json") for name in _sources(record)}
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in used)


def remove_unused_packages(root: Path) -> None:
    """Remove `unused_packages`, unless a process installs packages."""
    if not unused_packages(root):
        return
    with try_exclusive_lock(conda_packages(root) / _LOCK) as is_locked:
        for path in unused_packages(root) if is_locked else ():
            shutil.rmtree(path)


def _sources(record: Path) -> Iterator[str]:
    try:
        yield Path(read_json(record.read_bytes())["link"]["source"]).name
    except (OSError, ValueError, KeyError, TypeError):
        return  # of an archive: it was made elsewhere

"""What the processes of a test run share: folders that are made once, and turns."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name of the test run, filled by *make*; other processes that need it meanwhile wait.

    Args:
        factory: Where temporary folders come from.
        name: The folder's name.
        make: Called with the path, which does not exist yet. If it fails, the next caller tries again.
    """
    root = _shared(factory, name)
    done = root.with_name(f"{name}.done")
    with FileLock(f"{root}.lock"):
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)
            make(root)
            done.touch()
    return root


@contextmanager
def one_at_a_time(factory: pytest.TempPathFactory, name: str) -> Iterator[None]:
    """Wait until no other process of the test run is in a block of this name: two would be too much for the machine."""
    with FileLock(f"{_shared(factory, name)}.turn"):
        yield


def _shared(factory: pytest.TempPathFactory, name: str) -> Path:
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name

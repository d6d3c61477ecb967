"""Folders that are expensive to make and that no test changes: made once for all processes of a test run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
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
    base = factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    done = root.with_name(f"{name}.done")
    with FileLock(f"{root}.lock"):
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)
            make(root)
            done.touch()
    return root

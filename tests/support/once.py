"""What is dear to make and changed by nobody: made once for all processes of a test run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of the run's own in which *make* has put something; whoever comes meanwhile waits.

    Args:
        factory: Where temporary folders come from.
        name: The folder's, for this alone.
        make: Gets a path at which nothing is. If it fails, the next one to ask tries anew.
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

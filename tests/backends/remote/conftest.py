"""The backend `remote`: its package where guests find it, and two servers, of which one calls the other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends.builds import declared_environment
from support.server import ServerProcess

from . import models

BACKEND = Path(__file__).parents[3] / "backends" / "remote"
if str(BACKEND) not in sys.path:
    sys.path.append(str(BACKEND))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The flag for a store with the environment that the backend declares."""
    return f"--env-store={declared_environment(tmp_path_factory, 'remote')}"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server whose models are called; nothing a test does with it changes what others find."""
    folder = tmp_path_factory.mktemp("target")
    with ServerProcess(models.add_targets(folder / "models"), work=folder) as server:
        yield server

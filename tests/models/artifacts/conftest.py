"""A registry, a repository and the commands for tests of artifacts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from models.artifacts.repositories import Commands, make_repository
from support.registry import Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as running:
        yield running


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


@pytest.fixture
def naiad(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The commands, as on a machine where nobody is logged in, and without pauses between attempts."""
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "NAIAD_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("naiad.sources.registry.transport.PAUSES", (0.0, 0.0))
    return Commands(tmp_path / "store", capsys)

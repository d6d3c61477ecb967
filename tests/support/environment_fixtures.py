"""Environments that many tests share. Making one takes a second; no test changes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import makers, served
from support.once import once

from naiad.environments.manager import EnvironmentManager
from naiad.environments.progress import ProgressEvent


class Recorder:
    """Remembers progress."""

    def __init__(self) -> None:
        self.events: list[ProgressEvent] = []

    def on_progress(self, event: ProgressEvent) -> None:
        self.events.append(event)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def manager(tmp_path: Path, recorder: Recorder) -> EnvironmentManager:
    return EnvironmentManager(tmp_path / "store", reporter=recorder)


@pytest.fixture(scope="session")
def minor() -> str:
    return makers.other_minor()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, minor: str) -> Path:
    """A whole environment of another Python than ours."""
    return makers.make_environment(tmp_path_factory.mktemp("made") / "whole", minor)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Path:
    """The environment `whole`, in an archive."""
    return makers.pack_plainly(whole, tmp_path_factory.mktemp("packed") / "whole.tar.gz")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Path:
    """A store with the environment of `archive`, for tests that do not change it."""
    root = tmp_path_factory.mktemp("filled") / "store"
    EnvironmentManager(root, reporter=Recorder()).prepare(archive)
    return root


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An archive made by conda-pack with a real numpy in it, and the version of its Python."""
    made, minor = served.made_environment(once(tmp_path_factory, "environment-serving", served.packed_environment))
    # A copy for each process: a test may change a file that a test of another process is unpacking.
    return Path(shutil.copy2(made, tmp_path_factory.mktemp("serving"))), minor

"""Our own modules are compiled once for each Python that runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from naiad.environments.manager import EnvironmentManager


@pytest.fixture
def library(tmp_path: Path) -> Path:
    package = tmp_path / "lib" / "naiad_stub"
    package.mkdir(parents=True)
    for name in ("__init__", "main"):
        (package / f"{name}.py").write_text("X = 1\n")
    return tmp_path / "lib"


def compiled(library: Path) -> list[str]:
    return sorted(path.name for path in library.rglob("*.pyc"))


def test_the_guest_is_compiled_for_the_python_it_will_run_under(tmp_path, library, whole, recorder):
    manager = EnvironmentManager(tmp_path / "store", reporter=recorder, guest_library=library)

    other, host = manager.prepare(whole), manager.prepare(None)

    tags = {environment.cache_tag for environment in (other, host) if environment.bytecode is None}
    assert compiled(library) == sorted(f"{name}.{tag}.pyc" for name in ("__init__", "main") for tag in tags)
    assert other.cache_tag in tags


def test_it_is_compiled_once(tmp_path, library, whole, recorder, monkeypatch):
    manager = EnvironmentManager(tmp_path / "store", reporter=recorder, guest_library=library)
    manager.prepare(whole)
    monkeypatch.setattr("subprocess.run", None)

    manager.prepare(whole)


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_start(tmp_path, library, whole, recorder):
    (library / "naiad_stub" / "__pycache__").write_text("in the way")
    manager = EnvironmentManager(tmp_path / "store", reporter=recorder, guest_library=library)

    assert manager.prepare(whole).prefix == whole
    assert compiled(library) == []

"""Environments packed by the real conda-pack, used where they were not built, after the original is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import makers

pytestmark = pytest.mark.builds


def packed(folder: Path, minor: str, extension: str) -> tuple[Path, Path]:
    """An archive of a conda environment that no longer exists, and where that was."""
    made = makers.make_environment(folder / "made here", minor, conda=True)
    archive = makers.conda_pack(made, folder / f"packed.{extension}")
    shutil.rmtree(made)
    return archive, made


MINORS = tuple(makers.base_interpreters())


@pytest.mark.parametrize(
    "minor",
    [*{MINORS[0], MINORS[-1]}, *(pytest.param(minor, marks=pytest.mark.endurance) for minor in MINORS[1:-1])],
)
def test_a_packed_environment_of_any_python_runs_after_the_original_is_gone(minor, manager, tmp_path):
    archive, _ = packed(tmp_path, minor, "tar.gz")

    ready = manager.prepare(archive)

    assert ".".join(map(str, ready.version[:2])) == minor
    assert ready.numpy_version == "0.0.stand-in"
    assert ready.library_path is None
    printed = makers.run(ready.python, "-c", "import sys, numpy, json; print(json.dumps([sys.prefix, numpy.__file__]))")
    assert printed.count(str(ready.prefix)) == 2


@pytest.mark.parametrize("extension", [pytest.param("tar.bz2", marks=pytest.mark.endurance), "tar.zst", "tar", "zip"])
def test_every_archive_format_of_conda_pack_is_accepted(extension, manager, tmp_path, minor):
    archive, _ = packed(tmp_path, minor, extension)

    ready = manager.prepare(archive)

    assert makers.run(ready.python, "-c", "import numpy; print(numpy.__version__)") == "0.0.stand-in\n"


def test_paths_recorded_by_packages_are_those_of_the_store_and_so_is_the_activation(manager, tmp_path, minor):
    archive, original = packed(tmp_path, minor, "tar.gz")

    ready = manager.prepare(archive)

    assert (ready.prefix / "etc" / "where.txt").read_text() == f"installed in {ready.prefix}\n"
    assert str(original) not in (ready.prefix / "bin" / "where").read_text()
    assert ready.environ({})["CONDA_PREFIX"] == str(ready.prefix)
    assert ready.bytecode is None

"""Paths without links lead to the same file, through links of /proc too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.modelcar import mounted_elsewhere

from naiad.core.real_paths import lasting_path, real_path


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "releases" / "1").mkdir(parents=True)
    (tmp_path / "releases" / "1" / "file").touch()
    (tmp_path / "current").symlink_to("releases/1")
    (tmp_path / "absolute").symlink_to(tmp_path / "current")
    (tmp_path / "up").symlink_to("releases/../current/..")
    (tmp_path / "dangling").symlink_to("releases/2/file")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "releases/1/file",
        "current/file",
        "absolute/file",
        "absolute/../1/file",
        "up/1/file",
        "dangling",
        "dangling/below",
        "missing/../other",
        "loop",
        "loop/file",
        "releases/1/file/below",
        ".",
    ],
)
def test_a_path_is_resolved_as_the_library_does(tree, name):
    assert str(real_path(tree / name)) == os.path.realpath(tree / name)


def test_a_relative_path_begins_in_the_working_folder(tree, monkeypatch):
    monkeypatch.chdir(tree)

    assert real_path("current/file") == tree / "releases" / "1" / "file"


def test_the_working_folder_of_a_process_is_not_resolved_by_its_text(tree, monkeypatch):
    monkeypatch.chdir(tree)

    assert real_path("/proc/self/cwd/current") == Path(f"/proc/{os.getpid()}/cwd/releases/1")
    assert lasting_path(Path("/proc/self/cwd/current")) == Path("/proc/self/cwd/current")


def test_links_in_another_mount_namespace_are_resolved_there(tree, tmp_path_factory):
    with mounted_elsewhere(tree, tmp_path_factory.mktemp("mnt") / "models") as models:
        inside = models.readlink()

        assert not Path(os.path.realpath(models / "current" / "file")).exists()
        assert real_path(models / "current" / "file") == inside / "releases" / "1" / "file"
        assert real_path(models / "current" / "file").samefile(tree / "current" / "file")
        assert real_path(models / "dangling") == inside / "releases" / "2" / "file"
        assert lasting_path(models / "current" / "file") == models / "current" / "file"
        assert lasting_path(tree / "current" / "file") == tree / "releases" / "1" / "file"

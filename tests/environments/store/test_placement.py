"""Folders whose children the file system is asked to place apart from each other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.environments.progress import LogReporter
from naiad.environments.store.placement import spread
from naiad.environments.store.store import Store

_MARK = "T"


def attributes(folder: Path) -> str:
    """What lsattr says of a folder; empty where the file system has no such attributes."""
    program = shutil.which("lsattr")
    if program is None:
        pytest.skip("there is no lsattr to look with")
    done = subprocess.run([program, "-d", folder], capture_output=True, text=True, check=False)
    return done.stdout.partition(" ")[0]


@pytest.mark.skipif(sys.platform != "linux", reason="attributes of Linux's file systems")
def test_a_folder_is_marked_once_and_folders_in_it_are_not(tmp_path):
    before = attributes(tmp_path)

    spread(tmp_path)
    spread(tmp_path)
    (tmp_path / "below").mkdir()

    if not before:
        pytest.skip("the file system of temporary files has no attributes")
    assert _MARK in attributes(tmp_path)
    assert _MARK not in attributes(tmp_path / "below")


def test_a_folder_that_cannot_be_marked_is_left_as_it_is(tmp_path):
    (tmp_path / "file").write_text("as it was")

    spread(tmp_path / "nowhere")
    spread(tmp_path / "file")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "as it was"


def test_environments_are_unpacked_apart_from_those_that_were_removed(tmp_path):
    store = Store(tmp_path / "store", LogReporter())

    assert not store.remove("0" * 64)

    if not attributes(tmp_path):
        pytest.skip("the file system of temporary files has no attributes")
    assert _MARK in attributes(tmp_path / "store" / "staging")

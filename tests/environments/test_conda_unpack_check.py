"""Folders whose files have the path of another folder are noticed before a model runs in them."""

from __future__ import annotations

import logging
import shutil
import subprocess
import tarfile

import pytest
from environments import makers

from naiad.config.model.environment_source import EnvironmentSource
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.conda_unpack_check import explain_moved_scripts, explain_unfinished_unpacking


@pytest.fixture(scope="module")
def conda(tmp_path_factory, minor):
    return makers.make_environment(tmp_path_factory.mktemp("conda") / "made", minor, conda=True)


def unpacked(archive, folder):
    folder.mkdir()
    with tarfile.open(archive) as content:
        content.extractall(folder)
    return folder


@pytest.mark.builds
def test_an_archive_that_was_unpacked_by_hand_needs_its_conda_unpack(manager, conda, tmp_path):
    folder = unpacked(makers.conda_pack(conda, tmp_path / "made.tar"), tmp_path / "unpacked")
    interpreter = EnvironmentSource(path=folder / "bin" / "python", is_interpreter=True)

    for source in (folder, interpreter):
        with pytest.raises(ExecutionEnvironmentError) as caught:
            manager.prepare(source)
        assert (
            "cannot be used: it was unpacked from an archive of conda-pack whose bin/conda-unpack has not run, so"
            in (caught.value.message)
        )
        assert f" in place of its path; run {folder}/bin/conda-unpack, or name the archive" in caught.value.message

    subprocess.run([folder / "bin" / "python", folder / "bin" / "conda-unpack"], check=True)
    assert manager.prepare(folder).prefix == folder
    assert manager.prepare(interpreter).prefix == folder


@pytest.mark.builds
def test_scripts_for_another_folder_are_warned_of_once(manager, conda, tmp_path, caplog):
    archive = makers.conda_pack(conda, tmp_path / "made.tar", "--dest-prefix=/somewhere/else")
    folder = unpacked(archive, tmp_path / "unpacked")

    with caplog.at_level(logging.WARNING):
        assert manager.prepare(folder).prefix == folder
        manager.prepare(folder)

    (record,) = caplog.records
    assert record.getMessage() == (
        f"the execution environment {folder}: programs in {folder}/bin such as where cannot be started: they need "
        "/somewhere/else/bin/python, which does not exist; the environment was made for the folder /somewhere/else "
        "(conda-pack --dest-prefix, or a copy): put it there, or make it again where it is"
    )


def test_an_environment_where_it_was_made_is_not_suspected(whole, tmp_path):
    assert (explain_unfinished_unpacking(whole), explain_moved_scripts(whole)) == ("", "")

    copy = shutil.copytree(whole, tmp_path / "copy", symlinks=True)
    assert explain_moved_scripts(copy) == "", "the scripts start the interpreter that they were made for"


@pytest.mark.parametrize(
    "script",
    [
        "",
        "_prefix_records = [\n(1,\n]",
        "_prefix_records = [\nopen('x')\n]",
        "_prefix_records = [\n('a', 'b', 'text')\n]",
    ],
)
def test_another_program_of_that_name_is_no_obstacle(tmp_path, script):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "conda-unpack").write_text(script)
    (tmp_path / "bin" / "binary").write_bytes(b"#! \xff/bin/python\n")

    assert (explain_unfinished_unpacking(tmp_path), explain_moved_scripts(tmp_path)) == ("", "")
    assert explain_unfinished_unpacking(tmp_path / "missing") == ""

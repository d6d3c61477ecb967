"""Environments that are reached through `/proc/PID/root`, whose spelled-out path does not exist here."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from environments.makers import member, write_tar
from support.modelcar import mounted_elsewhere

from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.server.guest_user import GuestUser
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.signatures import TrustedKeys
from naiad.environments.archives.extraction import unpack
from naiad.environments.policy import StorePolicy
from naiad.guests.access import describe_denied_access
from naiad.models.repository.layout import is_inside
from naiad.sources.interpreters.executables import explain_not_executable


@pytest.fixture
def models(tmp_path):
    (tmp_path / "image").mkdir()
    with mounted_elsewhere(tmp_path / "image", tmp_path / "models") as mounted:
        yield mounted


def test_an_archive_is_read(manager, archive, models, tmp_path):
    shutil.copy2(archive, models / "environment.tar.gz")
    (models / "link").symlink_to("environment.tar.gz")

    ready = manager.prepare(models / "link")

    assert ready.prefix.is_relative_to(tmp_path / "store")
    assert ready.source == models / "link"


def test_a_folder_and_its_interpreter_are_used_in_place(manager, whole, models, minor):
    shutil.copytree(whole, models / "whole", symlinks=True)

    folder = manager.prepare(models / "whole")
    interpreter = manager.prepare(EnvironmentSource(path=models / "whole" / "bin" / "python", is_interpreter=True))

    assert (folder.prefix, folder.python) == (models / "whole", models / "whole" / "bin" / "python")
    assert (interpreter.prefix, interpreter.python) == (folder.prefix, folder.python)
    assert folder.cache_tag == "cpython-" + minor.replace(".", "")


def test_a_missing_environment_is_reported_with_the_folder_that_exists(manager, models):
    (models / "model").mkdir()

    with pytest.raises(ExecutionEnvironmentError) as caught:
        manager.prepare(models / "model" / "missing.tar.gz")

    missing = models / "model" / "missing.tar.gz"
    assert f"({missing}; {models / 'model'} exists)" in caught.value.message


def test_a_file_that_may_not_be_read_or_executed_is_explained(models):
    program = models / "program"
    program.touch(0o600)

    root = models.readlink().parents[-4]  # /proc/PID/root
    assert f" {root}/" in describe_denied_access(GuestUser(uid=54321, gid=54321), [program])
    assert f"{models.readlink()}/program has lost its permission" in explain_not_executable(program)


def test_a_link_out_of_a_model_is_not_inside_of_it(models, tmp_path):
    (models / "model").mkdir()
    (models / "model" / "labels.txt").touch()
    (models / "model" / "out").symlink_to(tmp_path)

    assert is_inside(models / "model" / "labels.txt", models / "model")
    assert not is_inside(models / "model" / "out" / "labels.txt", models / "model")


def test_an_archive_whose_links_leave_it_is_not_unpacked_there(models, tmp_path, recorder):
    links = [("a/b/up", "../.."), ("down", "a/b/up/..")]
    members = [(member(name, tarfile.SYMTYPE, target), b"") for name, target in links]
    archive = write_tar(tmp_path / "links.tgz", members)
    (models / "env").mkdir()

    with pytest.raises(ExecutionEnvironmentError, match="is a symbolic link that leaves the archive"):
        unpack(archive, models / "env", reporter=recorder)


@pytest.fixture
def policy(models, tmp_path):
    return StorePolicy(trust=TrustedKeys(tmp_path / "keys.toml", {}, {}), signed_folders=(tmp_path / "signed",))


def add_environment(folder: Path) -> Path:
    environment = folder / "shop" / ".naiad" / "environments" / "own" / "own.tar.gz"
    environment.parent.mkdir(parents=True)
    environment.touch()
    return environment


def test_an_environment_of_a_signed_repository_is_recognised_however_it_is_named(policy, models, tmp_path):
    environment = add_environment(models)
    through = replace(policy, signed_folders=(models,))

    assert through.keys_for(environment) is None
    assert through.keys_for(models.readlink() / environment.relative_to(models)) is None
    assert through.keys_for(tmp_path / "image" / environment.relative_to(models)) is None
    assert policy.keys_for(environment) is policy.trust


def test_a_link_below_signed_repositories_is_not_covered_by_their_signature(policy, tmp_path):
    other = add_environment(tmp_path / "other")
    own = add_environment(tmp_path / "signed")
    (own.parent / "linked.tar.gz").symlink_to(other)
    (own.parents[1] / "linked").symlink_to(other.parent)
    (tmp_path / "signed" / "linked").symlink_to(tmp_path / "other" / "shop")

    assert policy.keys_for(own) is None
    assert policy.keys_for(own.parent / "linked.tar.gz") is policy.trust
    assert policy.keys_for(own.parents[1] / "linked" / own.name) is policy.trust
    assert (
        policy.keys_for(tmp_path / "signed" / "linked" / other.relative_to(tmp_path / "other" / "shop")) is policy.trust
    )
    assert policy.keys_for(own.parents[1] / ".." / own.name) is policy.trust

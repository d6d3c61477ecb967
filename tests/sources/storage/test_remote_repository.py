"""Repositories elsewhere: listed there, copied here model by model, and only what changed."""

from __future__ import annotations

import uuid

import fsspec
import pytest

from naiad.core.errors import RepositoryError, StorageError
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.remote import RemoteRepository
from naiad.models.repository.repositories import directory_signature, open_repositories
from naiad.sources.storage.opening import open_storage


@pytest.fixture
def store():
    """A file system in memory, shared by all of this process, with a folder of the test's own."""
    filesystem = fsspec.filesystem("memory")
    folder = f"/{uuid.uuid4().hex}"
    yield filesystem, folder
    if filesystem.exists(folder):
        filesystem.rm(folder, recursive=True)


@pytest.fixture
def repository(store):
    filesystem, folder = store
    filesystem.pipe(
        {
            f"{folder}/m/config.pbtxt": b"config",
            f"{folder}/m/1/model.py": b"model",
            f"{folder}/m/1/deep/weights.bin": b"weights",
            f"{folder}/m/1/__pycache__/model.pyc": b"bytecode",
            f"{folder}/n/1/model.py": b"other",
            f"{folder}/.git/HEAD": b"ref",
            f"{folder}/README.md": b"text",
        }
    )
    repository = RemoteRepository(open_storage(f"memory:/{folder}"), {})
    yield repository
    repository.close()


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


COPY = {"config.pbtxt": b"config", "1/model.py": b"model", "1/deep/weights.bin": b"weights"}


def test_folders_are_models_but_for_hidden_ones(repository):
    assert repository.model_names() == ["m", "n"]
    assert repository.known_model_names() == ["m", "n"]


def test_a_model_is_copied_without_bytecode_and_files_of_editors(repository):
    repository.fetch("m")

    assert contents(repository.directory / "m") == COPY
    assert not (repository.directory / "n").exists()
    assert [entry.name for entry in repository.directory.iterdir()] == ["m"]


def test_only_changed_files_are_copied_again_and_deleted_ones_are_removed(repository, store):
    filesystem, folder = store
    repository.fetch("m")
    weights = repository.directory / "m" / "1" / "deep" / "weights.bin"
    before = weights.stat()
    filesystem.pipe({f"{folder}/m/1/model.py": b"changed", f"{folder}/m/2/model.py": b"new"})
    filesystem.rm_file(f"{folder}/m/config.pbtxt")

    repository.fetch("m")

    assert contents(repository.directory / "m") == {
        "1/model.py": b"changed",
        "2/model.py": b"new",
        "1/deep/weights.bin": b"weights",
    }
    assert (weights.stat().st_mtime_ns, weights.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_a_folder_becomes_a_file_and_a_file_a_folder(repository, store):
    filesystem, folder = store
    repository.fetch("m")
    filesystem.rm(f"{folder}/m/1/deep", recursive=True)
    filesystem.pipe({f"{folder}/m/1/deep": b"file"})
    filesystem.rm_file(f"{folder}/m/1/model.py")
    filesystem.pipe({f"{folder}/m/1/model.py/inside": b"file"})

    repository.fetch("m")

    assert contents(repository.directory / "m" / "1") == {"deep": b"file", "model.py/inside": b"file"}


def test_a_failed_copy_leaves_the_earlier_copy_unchanged(repository, store, monkeypatch):
    filesystem, folder = store
    repository.fetch("m")
    filesystem.pipe({f"{folder}/m/1/model.py": b"changed", f"{folder}/m/config.pbtxt": b"changed"})
    copy = type(filesystem).get_file

    def fails(self, rpath, lpath, **more):
        if rpath.endswith("config.pbtxt"):
            raise ConnectionResetError("gone")
        return copy(self, rpath, lpath, **more)

    with monkeypatch.context() as patch:
        patch.setattr(type(filesystem), "get_file", fails)
        with pytest.raises(StorageError, match=r"cannot copy '.*/m/config\.pbtxt': ConnectionResetError: gone"):
            repository.fetch("m")

    assert contents(repository.directory / "m") == COPY
    assert [entry.name for entry in repository.directory.iterdir()] == ["m"]
    repository.fetch("m")
    assert contents(repository.directory / "m")["1/model.py"] == b"changed"


def test_a_snapshot_changes_with_the_stored_files_and_reads_none(repository, store):
    filesystem, folder = store
    before = repository.snapshot()
    assert repository.snapshot() == before
    assert sorted(before["m"]) == ["1/", "1/deep/", "1/deep/weights.bin", "1/model.py", "config.pbtxt"]

    filesystem.pipe({f"{folder}/m/1/__pycache__/model.pyc": b"more bytecode", f"{folder}/n/1/model.py": b"otter"})

    assert repository.snapshot()["m"] == before["m"]
    assert repository.snapshot()["n"] != before["n"]
    assert not list(repository.directory.iterdir())


def test_snapshots_of_a_copy_and_of_the_store_have_the_same_paths(repository):
    repository.fetch("m")

    assert sorted(directory_signature(repository.directory / "m")) == sorted(repository.snapshot()["m"])


def test_a_model_that_is_not_there_is_named(repository):
    with pytest.raises((RepositoryError, StorageError), match="/nothing'"):
        repository.fetch("nothing")


@pytest.mark.parametrize("path", ["m/../../outside", "m/1/..", "m/./x"])
def test_a_path_that_leads_out_is_refused(repository, monkeypatch, path):
    filesystem = repository._storage.filesystem
    start = repository._storage.path
    monkeypatch.setattr(type(filesystem), "find", lambda *_, **__: {f"{start}/{path}": {"type": "file", "size": 1}})

    with pytest.raises(StorageError, match="which leads out of it"):
        repository.snapshot()


def test_copies_are_removed_with_the_repository(repository):
    repository.fetch("m")
    repository.close()

    assert not repository.directory.exists()


def test_copies_are_in_the_folder_of_the_references_variable(tmp_path):
    storage = open_storage((tmp_path / "there").as_uri())
    storage = type(storage)("s3://bucket/x", storage.filesystem, storage.path)
    (tmp_path / "mount").mkdir()

    repository = RemoteRepository(storage, {"TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path / "mount")})

    assert repository.directory.parent == tmp_path / "mount"
    with pytest.raises(RepositoryError, match="TRITON_AWS_MOUNT_DIRECTORY names '/nowhere', which is not a directory"):
        RemoteRepository(storage, {"TRITON_AWS_MOUNT_DIRECTORY": "/nowhere"})


def test_repositories_here_and_elsewhere_are_one(repository, store, tmp_path):
    _, folder = store
    (tmp_path / "here" / "l" / "1").mkdir(parents=True)
    repositories = open_repositories([tmp_path / "here", f"memory:/{folder}"])
    try:
        found, look = repositories.snapshot()
        assert list(found.models) == ["l", "m", "n"] == list(repositories.scan().models)
        assert sorted(look) == ["l", "m", "n"]
        repositories.fetch(found.models["m"])
        assert (found.models["m"].directory / "1" / "model.py").read_bytes() == b"model"
        repositories.fetch(ModelFiles(name="x", repository=tmp_path, directory=tmp_path))  # of no repository
    finally:
        repositories.close()

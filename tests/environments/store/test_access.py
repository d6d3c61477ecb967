"""A store that another user has filled with a umask of its own: what may not be read is said, and nothing is lost."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.fetching.remote import RemoteArchives
from naiad.environments.progress import LogReporter
from naiad.environments.store.access import explained, store_error
from naiad.environments.store.entries import explain_closed_entries, find_entry, read_entries
from naiad.environments.store.record import has_record, read_record
from naiad.environments.store.store import Store

from .made import DIGESTS, add_entry, interpreter, write_environment

A, B, C = DIGESTS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """Closes a place to this user, as the mode of another one's file does; returns what is said of it.

    Tests may run as root, to whom nothing is closed.
    """
    closed: list[Path] = []

    def is_closed(path: str | os.PathLike[str]) -> bool:
        return any(Path(path).is_relative_to(place) for place in closed)

    def denied(path: str | os.PathLike[str]) -> PermissionError:
        return PermissionError(errno.EACCES, "Permission denied", str(path))

    may, read, listed, scanned = os.access, Path.read_bytes, os.listdir, os.scandir

    def read_open(self: Path) -> bytes:
        if is_closed(self):
            raise denied(self)
        return read(self)

    def list_open(path: str | os.PathLike[str] = ".") -> list[str]:
        if is_closed(path):
            raise denied(path)
        return listed(path)

    def scan_open(path: str | os.PathLike[str] = ".") -> object:
        if is_closed(path):
            raise denied(path)
        return scanned(path)

    monkeypatch.setattr(os, "access", lambda path, mode: may(path, mode) and not is_closed(os.path.realpath(path)))
    monkeypatch.setattr(os, "listdir", list_open)
    monkeypatch.setattr(os, "scandir", scan_open)
    monkeypatch.setattr(Path, "read_bytes", read_open)

    def close_place(place: Path) -> str:
        closed.append(place)
        facts = place.stat()
        return (
            f"{place} belongs to user {facts.st_uid} (mode {stat.S_IMODE(facts.st_mode):o}), and this is user "
            f"{os.geteuid()}, who may not read it; as its owner, run `chmod "
        )

    return close_place


@pytest.mark.parametrize("place", [".", A, f"{A}/ready.json", f"{A}/env", f"{A}/env/bin/python", f"{A}/env/site"])
def test_an_entry_that_may_not_be_read_is_no_leftover_and_is_said_with_its_owner(root, close, place):
    prefix = root / A / "env"
    facts = interpreter(prefix, site_dirs=(str(prefix / "site"),))
    write_environment(prefix, {"site/numpy": b""})
    add_entry(root, A, interpreter=facts)
    said = close(root / place)
    store = Store(root, LogReporter())

    store.remove_leftovers()
    with pytest.raises(ExecutionEnvironmentError) as caught:
        store.get(A)

    assert caught.value.message == (
        f"cannot use the store of environments at {root}: {said}-R a+rX {root}` and fill the store with umask 022, or "
        "name another store with --env-store"
    )
    assert has_record(root / A)
    assert store.find_leftovers() == []


def test_an_interpreter_outside_of_the_store_is_said_with_its_own_place(root, close, tmp_path):
    base = tmp_path / "base" / "python3"
    base.parent.mkdir()
    base.touch()
    add_entry(root, A)
    python = root / A / "env/bin/python"
    python.unlink()
    python.symlink_to(base)
    said = close(base.parent)

    with pytest.raises(ExecutionEnvironmentError) as caught:
        read_record(root / A)

    assert f": {said}a+rX {base.parent}` and " in caught.value.message


def test_a_folder_that_may_not_be_listed_after_a_reboot_has_lost_no_files(root, close, monkeypatch, tmp_path):
    boot = tmp_path / "boot"
    boot.write_text("first")
    monkeypatch.setattr("naiad.environments.store.record._BOOT_ID", boot)
    add_entry(root, A, {"lib/module.py": b"1"})
    boot.write_text("second")
    said = close(root / A / "env/lib")

    with pytest.raises(ExecutionEnvironmentError) as caught:
        read_record(root / A)

    assert said in caught.value.message


def test_entries_that_may_not_be_read_are_left_out_and_counted(root, close):
    assert explain_closed_entries(root) == ""
    for digest in DIGESTS:
        add_entry(root, digest)
    first, second = close(root / A), close(root / B / "ready.json")

    assert [entry.digest for entry in read_entries(root)] == [C]
    why = explain_closed_entries(root)
    assert why.startswith(f"2 environments left out: cannot use the store of environments at {root}: ")
    assert first in why or second in why
    for digest, said in ((A, first), (B, second)):
        with pytest.raises(ExecutionEnvironmentError) as caught:
            find_entry(root, digest[:8])
        assert said in caught.value.message


def test_a_store_that_may_not_be_listed_has_no_entries_to_speak_of(root, close):
    root.mkdir()
    said = close(root)

    with pytest.raises(ExecutionEnvironmentError) as caught:
        read_entries(root)

    assert said in caught.value.message


def test_the_first_digest_of_a_uri_is_not_forgotten_where_its_record_may_not_be_read(root, close):
    """The content of the URI would count as new, and any would be accepted."""
    remote = RemoteArchives(root, LogReporter())
    remote.record("https://127.0.0.1/e.tar", A, "1")
    assert remote.recorded_digest("https://127.0.0.1/e.tar") == A
    said = close(root / "remote")

    for read in (remote.recorded_digest, remote.recorded_version, lambda uri: remote.digest_if_unchanged(uri, "1")):
        with pytest.raises(ExecutionEnvironmentError) as caught:
            read("https://127.0.0.1/e.tar")
        assert said in caught.value.message


def test_a_failure_with_a_file_of_the_store_is_explained_and_others_are_not(root, close, tmp_path):
    (root / "locks").mkdir(parents=True)
    said = close(root / "locks")

    def fail(path: object) -> None:
        with explained(root):
            raise PermissionError(errno.EACCES, "Permission denied", path)

    with pytest.raises(ExecutionEnvironmentError) as caught:
        fail(str(root / "locks/a.lock"))
    assert said in caught.value.message
    for elsewhere in (str(tmp_path / "model.py"), 7, None):
        with pytest.raises(PermissionError):
            fail(elsewhere)
    assert said not in store_error(root, OSError(errno.ENOSPC, "full", str(root / "locks"))).message
    assert store_error(root, PermissionError(errno.EACCES, "no", 7)).message.startswith(
        f"cannot use the store of environments at {root}: no (7); choose another folder"
    )

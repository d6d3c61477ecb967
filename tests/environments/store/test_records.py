"""What a store records of its entries, compared with what is on the disk: files, uses, sizes, names."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import stat
import time
from pathlib import Path

import pytest
from environments.makers import member, write_tar

from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError, OptionError
from naiad.environments.archives.file_writers import UnpackedFile
from naiad.environments.progress import LogReporter
from naiad.environments.store import finishing, opening, package_cache, placement, room
from naiad.environments.store import leases as leases_module
from naiad.environments.store import record as record_module
from naiad.environments.store.entries import begins_with, entry_sizes, find_entry, read_entries, short_digests
from naiad.environments.store.eviction import DiskUsage, linked_files
from naiad.environments.store.file_digests import (
    compare_files,
    make_read_only,
    read_digests,
    record_files,
    scan_files,
    stat_file,
)
from naiad.environments.store.file_locks import exclusive_lock, shared_lock, try_exclusive_lock
from naiad.environments.store.finishing import share_files
from naiad.environments.store.inspection import ArchiveFacts, inspect_environment, read_facts
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.record import has_record, read_record
from naiad.environments.store.verification import verify_entries

from .made import DIGESTS, add_entry, write_environment

A, B, C = DIGESTS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def change_record(entry: Path, **values: object) -> None:
    path = entry / "ready.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# -- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("needs_library_path", "has_bytecode"), [(False, True), (True, False)])
def test_a_record_says_what_guests_need(root, needs_library_path, has_bytecode):
    found = add_entry(root, A, needs_library_path=needs_library_path, has_bytecode=has_bytecode)
    prefix = root / A / "env"
    assert (found.digest, found.prefix, found.interpreter.python) == (A, prefix, prefix / "bin" / "python")
    assert found.library_path == (prefix / "lib" if needs_library_path else None)
    assert found.bytecode == (None if has_bytecode else root / A / "bytecode")
    assert json.loads((root / A / "ready.json").read_text())["prefix"] == "env"
    moved = (root / A).rename(root / B)
    assert read_record(moved).interpreter.python == moved / "env" / "bin" / "python"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda entry: (entry / "ready.json").unlink(),
        lambda entry: (entry / "ready.json").write_text("[]"),
        lambda entry: change_record(entry, format=2),
        lambda entry: change_record(entry, interpreter={}),
        lambda entry: (entry / "env" / "bin" / "python").unlink(),
    ],
)
def test_an_entry_is_incomplete_without_a_usable_record(root, spoil):
    add_entry(root, A)
    spoil(root / A)
    assert read_record(root / A) is None


def test_after_another_boot_the_files_are_compared_once_with_the_record(root, monkeypatch):
    boot = root.parent / "boot"
    monkeypatch.setattr(record_module, "_BOOT_ID", boot)
    add_entry(root, A, {"lib/a": b"12345", "lib/b": b"1"})  # a system without boot ids
    assert json.loads((root / A / "ready.json").read_text())["boot"] == ""
    boot.write_text("second\n")
    assert read_record(root / A) is not None
    assert json.loads((root / A / "ready.json").read_text())["boot"] == "second"
    lost = root / A / "env" / "lib" / "a"
    lost.chmod(0o644)
    lost.write_bytes(b"")
    assert read_record(root / A) is not None, "nothing is lost without a reboot"
    boot.write_text("third\n")
    assert read_record(root / A) is None
    lost.write_bytes(b"54321")
    monkeypatch.setattr(json_cache, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")))
    assert read_record(root / A) is not None, "a store that cannot be written is used"
    assert json.loads((root / A / "ready.json").read_text())["boot"] == "second"


def test_an_entry_whose_record_may_not_be_looked_for_counts_as_complete(root, monkeypatch):
    add_entry(root, A)
    assert has_record(root / A)
    assert not has_record(root / B)

    def denied(*_args, **_more):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    assert has_record(root / B), "it is another user's"


# -- digests of files -------------------------------------------------------------------------------------------------


def test_files_and_links_are_scanned_and_their_digests_are_those_that_unpacking_knew(root):
    prefix = root / A / "env"
    write_environment(prefix, {"lib/known": b"known", "lib/changed": b"changed", "lib/empty": b""})
    (prefix / "lib64").symlink_to("lib")
    (prefix / "gone").symlink_to("nowhere")
    os.mkfifo(prefix / "pipe")
    files = scan_files(root / A)
    assert {name: state.is_folder for name, state in files.items()} == {
        **dict.fromkeys(["bin/python", "lib/known", "lib/changed", "lib/empty", "gone", "pipe"], False),
        "lib64": True,
    }
    assert stat_file(prefix / "lib" / "known") == files["lib/known"]
    assert stat_file(prefix / "nothing") is None
    known = {
        name: UnpackedFile(files[name].size, files[name].mtime_ns + later, "unpacked")
        for name, later in (("lib/known", 0), ("lib/changed", 1))
    }
    found = record_files(root / A, files, known)
    assert found == read_digests(root / A)
    assert [found[name] for name in ("lib/known", "lib/changed", "lib64", "gone", "pipe")] == [
        ["644", "unpacked"],
        ["644", hashlib.sha256(b"changed").hexdigest()],
        ["link", "lib"],
        ["link", "nowhere"],
        ["special", ""],
    ]
    for text in ("[]", '{"format": 2, "content": {}}', '{"format": 1, "content": []}'):
        (root / A / "files.json").write_text(text)
        assert read_digests(root / A) is compare_files(root / A) is None


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("644", "644", False), ("644", "444", False), ("444", "644", True), ("644", "755", True), ("755", "644", True),
        ("755", "555", False),
    ],
)  # fmt: skip
def test_only_less_permission_to_write_is_no_change(root, before, after, changed):
    add_entry(root, A, {"file": b"x"})
    file = root / A / "env" / "file"
    file.chmod(int(before, 8))
    record_files(root / A, scan_files(root / A), {})
    file.chmod(int(after, 8))
    found = compare_files(root / A)
    assert (found.changed, found.missing, found.added, found.files) == (("file",) if changed else (), (), (), 2)
    assert found.has_changes == changed


def test_files_become_read_only_and_links_are_left_alone(root):
    prefix = root / A / "env"
    write_environment(prefix, {"file": b"x", "program": b"x", "done": b"x"})
    (prefix / "program").chmod(0o775)
    (prefix / "done").chmod(0o444)
    (prefix / "link").symlink_to("file")
    found = make_read_only(scan_files(root / A))
    assert found == scan_files(root / A)
    modes = {name: stat.S_IMODE((prefix / name).stat().st_mode) for name in ("file", "program", "done")}
    assert modes == {"file": 0o444, "program": 0o555, "done": 0o444}


def test_an_entry_is_verified_while_it_cannot_be_removed(root, monkeypatch):
    add_entry(root, A, {"file": b"x"})
    held = []
    monkeypatch.setattr(
        "naiad.environments.store.verification.compare_files",
        lambda folder: held.append(EntryLeases(root).is_leased(A)) or compare_files(folder),
    )
    [found] = verify_entries(root, (A[:7],))
    assert (found.is_intact, found.detail, found.source, held) == (True, "2 files compared", "/e.tar", [True])
    assert not EntryLeases(root).is_leased(A)
    os.utime(root / "uses" / A / "lock", (1, 1))
    verify_entries(root, ())
    assert EntryLeases(root).last_used(A) == 1, "it is no use"

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", "/file")

    monkeypatch.setattr("naiad.environments.store.verification.compare_files", fail)
    [found] = verify_entries(root, ())
    assert found.problem == "it cannot be read: Input/output error (/file)"
    assert not EntryLeases(root).is_leased(A)


# -- sharing ----------------------------------------------------------------------------------------------------------


def share(root: Path, content: dict[str, bytes]) -> tuple[int, list[str]]:
    """The bytes that a new entry with that content saves, and which of its files are links."""
    write_environment(root / B / "env", content)
    files = make_read_only(scan_files(root / B))
    for name, state in list(files.items()):  # as archives keep them
        os.utime(state.path, ns=(1, 1))
        files[name] = state._replace(mtime_ns=1)
    saved = share_files(root / B, files, record_files(root / B, files, {}))
    return saved, sorted(name for name, state in files.items() if os.lstat(state.path).st_nlink > 1)


def shareable(root: Path, content: dict[str, bytes]) -> None:
    add_entry(root, A, content)
    for state in scan_files(root / A).values():
        os.utime(state.path, ns=(1, 1))


@pytest.mark.parametrize(
    ("spoil", "linked"),
    [
        (lambda folder: None, True),
        (lambda folder: (folder / "lib" / "file").unlink(), False),
        (lambda folder: os.utime(folder / "lib" / "file", ns=(2, 2)), False),
        (lambda folder: (folder / "lib" / "file").chmod(0o555), False),
        (lambda folder: (folder.parent / "files.json").unlink(), False),
        (lambda folder: (folder.parent / "ready.json").unlink(), False),
    ],
)
def test_equal_files_of_complete_entries_are_shared(root, spoil, linked):
    shareable(root, {"lib/file": b"12345", "lib/other": b"1", "lib/empty": b""})
    spoil(root / A / "env")
    saved, links = share(root, {"lib/file": b"12345", "lib/other": b"2", "lib/empty": b""})
    assert (saved, links) == ((5, ["lib/file"]) if linked else (0, []))
    assert (root / B / "env" / "lib" / "file").read_bytes() == b"12345"
    assert not list((root / B).rglob("*.naiad-shared"))


@pytest.mark.parametrize(("code", "tries"), [(errno.EMLINK, 2), (errno.EPERM, 1), (errno.EEXIST, 2)])
def test_sharing_ends_where_links_are_impossible_and_goes_on_past_a_file_with_too_many(root, monkeypatch, code, tries):
    shareable(root, {"a": b"1", "b": b"1"})
    tried = []

    def refuse(*_: object) -> None:
        tried.append(1)
        raise OSError(code, "no")

    monkeypatch.setattr(finishing.os, "link", refuse)
    assert (share(root, {"a": b"1", "b": b"1"}), len(tried)) == ((0, []), tries)


def test_files_are_shared_with_the_most_recent_of_equal_entries(root, caplog):
    shareable(root, {"lib/file": b"5" * 2_000_000})
    shareable_at = root / C
    add_entry(root, C, {"lib/file": b"5" * 2_000_000})
    os.utime(shareable_at / "env" / "lib" / "file", ns=(1, 1))
    for entry, when in ((root / A, 2e9), (shareable_at, 1e9)):
        os.utime(entry / "ready.json", (when, when))
    with caplog.at_level(logging.DEBUG):
        assert share(root, {"lib/file": b"5" * 2_000_000}) == (2_000_000, ["lib/file"])
    assert (root / A / "env/lib/file").samefile(root / B / "env/lib/file")
    assert "shares 2 MB with other environments" in caplog.text


def test_what_is_removed_frees_the_bytes_that_nothing_else_has(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "file").write_bytes(b"x" * 100)
    (tmp_path / "a" / "own").write_bytes(b"x" * 7)
    (tmp_path / "a" / "link").symlink_to("own")
    os.link(tmp_path / "a" / "link", tmp_path / "a" / "link2", follow_symlinks=False)
    os.link(tmp_path / "a" / "deep" / "file", tmp_path / "b" / "deep" / "file")
    linked = {name: linked_files([tmp_path / name]) for name in "ab"}
    assert [list(sizes.values()) for sizes in linked.values()] == [[100], [100]]
    usage = DiskUsage({"a": 110, "b": 110, "c": 5}, linked)
    assert (usage.total, usage.remove("a"), usage.total) == (125, 10, 115)
    assert (usage.remove("b"), usage.remove("c"), usage.total) == (110, 5, 0)


def test_packages_that_no_environment_was_made_from_are_removed_unless_some_are_installed(root):
    folder = package_cache.conda_packages(root)
    assert package_cache.unused_packages(root) == []
    package_cache.remove_unused_packages(root)
    for name in ("used-1-0", "unused-1-0", ".half"):
        (folder / name).mkdir(parents=True)
    meta = {"a": {"link": {"source": "/x/used-1-0"}}, "b": {"link": {}}, "c": []}
    write_environment(
        root / A / "env", {f"conda-meta/{name}.json": json.dumps(value).encode() for name, value in meta.items()}
    )
    (root / A / "env" / "conda-meta" / "d.json").write_text("{")
    with package_cache.package_cache(folder):
        assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["unused-1-0", "used-1-0"]
        (folder / ".half").mkdir()
        with package_cache.package_cache(folder):
            assert (folder / ".half").exists(), "another process unpacks it"
        package_cache.remove_unused_packages(root)
        assert (folder / "unused-1-0").exists()
        (folder / ".half").rmdir()
    assert package_cache.unused_packages(root) == [folder / "unused-1-0"]
    package_cache.remove_unused_packages(root)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["used-1-0"]


def test_shared_locks_exclude_exclusive_ones_alone(tmp_path):
    file = tmp_path / "locks" / "file"
    for first, second, both in [
        (shared_lock, shared_lock, True), (shared_lock, None, False), (exclusive_lock, None, False), (None, None, True)
    ]:  # fmt: skip
        held = (first or try_exclusive_lock)(file)
        held.__enter__()
        if second is not None:
            with second(file):
                pass
        elif first is not None:
            with try_exclusive_lock(file) as is_locked:
                assert is_locked == both
        held.__exit__(None, None, None)
        with try_exclusive_lock(file) as is_locked:
            assert is_locked, "it is free afterwards"


# -- entries, their names and uses ------------------------------------------------------------------------------------


def test_entries_are_read_with_their_facts_and_others_are_left_out(root):
    made = time.time()
    add_entry(root, B, {"file": b"12345"}, archive="/b.tar")
    add_entry(root, A, archive="/b.tar")
    (root / A / "bytecode" / "deep").mkdir(parents=True)
    (root / A / "bytecode" / "deep" / "x.pyc").write_bytes(b"123")
    json_cache.write(root / C / "ready.json", {"size": "?"})
    json_cache.write(root / ("f" * 64) / "ready.json", {"archive": "/f.tar"})  # of an older version
    json_cache.write(root / "notes" / "ready.json", {"size": [1, 1]})
    write_environment(root / ("d" * 64) / "env")
    (root / ("e" * 64)).mkdir()
    (root / ("e" * 64) / "ready.json").write_text("[]")
    first, second, old = read_entries(root)
    assert (old.size, old.files, old.python, old.numpy) == (0, 0, "?", "none")
    assert (first.digest, second.digest, first.folders) == (A, B, (root / A,))
    assert (first.size, first.files, second.size, second.files) == (3, 2, 5, 2)
    assert (first.archive, first.python, first.numpy, first.platform) == ("/b.tar", "3.10.1", "1.2", "linux-x86_64")
    assert (first.last_used, first.in_use, first.models) == (first.made, False, ())
    assert first.made == pytest.approx(made, abs=60)
    lease = EntryLeases(root).acquire(A)
    lock = root / "uses" / A / "lock"
    os.utime(lock, (2e9, 2e9))
    EntryLeases(root).record_model(A, "m", "/b.tar")
    EntryLeases(root).record_model(A, "a", "/b.tar")
    (root / "uses" / A / "bad.json").write_text("{}")
    [used] = [entry for entry in read_entries(root) if entry.digest == A]
    assert (used.last_used, used.in_use, [use.model for use in used.models]) == (2e9, True, ["a", "m"])
    lease.release()
    os.utime(lock, (1, 1))
    [used] = [entry for entry in read_entries(root) if entry.digest == A]
    assert (used.last_used, used.in_use) == (used.made, False)
    assert sorted(entry_sizes(root)) == [0, 0, 5]


def test_a_digest_is_named_by_its_start_if_that_is_long_enough():
    digests = ["1" * 64, "1" * 9 + "2" * 55, "1" * 9 + "3" * 55, "4" * 64]
    assert list(short_digests(digests).values()) == ["1" * 10, "1" * 9 + "2", "1" * 9 + "3", "4" * 7]
    assert short_digests(["a" * 64, "a" * 64]) == {"a" * 64: "a" * 7}
    for text, names in [("A" * 7, True), ("a" * 6, False), ("sha256:" + "a" * 64, True), ("b" * 7, False)]:
        assert begins_with(A, text) == names, text


def test_an_entry_is_found_by_its_archive_however_it_is_spelled(root, monkeypatch, tmp_path):
    archive = tmp_path / "e.tar"
    archive.write_text("")
    (tmp_path / "link.tar").symlink_to(archive)
    add_entry(root, A, archive=str(tmp_path / "link.tar"))
    add_entry(root, B, archive="s3://bucket/e.tar")
    monkeypatch.chdir(tmp_path)
    for text, digest in [("e.tar", A), (str(archive), A), ("s3://bucket/e.tar", B), (B[:7], B)]:
        assert find_entry(root, text).digest == digest
    for text, told in [("no.tar", "holds 2, and no such file; name"), (str(root), "holds 2; name")]:
        with pytest.raises(ExecutionEnvironmentError, match=told):
            find_entry(root, text)


def test_a_lease_is_empty_where_files_cannot_be_locked_or_written(root, monkeypatch):
    leases = EntryLeases(root)
    assert not leases.is_leased(A)
    assert leases.last_used(A) is None
    assert not (root / "uses").exists(), "a look creates nothing"
    opened = []

    def fail(descriptor: int, _: int) -> None:
        opened.append(descriptor)
        raise OSError(errno.ENOLCK, "no locks")

    with monkeypatch.context() as patch:
        patch.setattr(leases_module.fcntl, "flock", fail)
        lease = leases.acquire(A)
        with leases.exclusive(A) as is_unused:
            assert not is_unused
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    lease.release()
    real_open = os.open

    def read_only(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EROFS, "read-only")
        return real_open(path, flags, mode)

    monkeypatch.setattr(leases_module.os, "open", read_only)
    lease = leases.acquire(A)
    assert leases.is_leased(A), "a file of another user can be locked all the same"
    lease.release()


def test_a_store_among_temporary_files_is_private(tmp_path, monkeypatch):
    private = tmp_path / "private" / "store"
    monkeypatch.setattr(opening, "private_store", lambda: private)
    assert opening.open_store(private) == private
    assert private.parent.stat().st_mode & 0o777 == 0o700
    assert opening.open_store(private) == private
    private.parent.chmod(0o777)
    with pytest.raises(OptionError):
        opening.open_store(private)
    assert opening.open_store(tmp_path / "other") == tmp_path / "other"
    assert not (tmp_path / "other").exists()


def test_only_a_folder_that_is_not_flagged_is_flagged(tmp_path, monkeypatch):
    calls: list[tuple[int, int]] = []
    for before, after in [(0, [placement._TOP_FOLDER]), (1, [placement._TOP_FOLDER | 1]), (placement._TOP_FOLDER, [])]:
        calls.clear()

        def ioctl(_: int, request: int, flags, before: int = before) -> None:
            if request == placement._GET_FLAGS:
                flags[0] = before
            else:
                calls.append(flags[0])

        monkeypatch.setattr(placement.fcntl, "ioctl", ioctl)
        placement.spread(tmp_path)
        assert calls == after
    placement.spread(tmp_path / "none")


def test_the_free_room_is_that_of_the_closest_folder_there_is(tmp_path, monkeypatch):
    asked = []

    def status(folder: Path) -> os.statvfs_result:
        asked.append(folder)
        return os.statvfs_result((1, 4, 10, 9, 3, 100, 90, 80, 0, 255))

    monkeypatch.setattr(room.os, "statvfs", status)
    assert room.free_room(tmp_path / "a" / "b") == room.FreeRoom(size=12, files=80)
    assert asked == [tmp_path]
    monkeypatch.setattr(room.os, "statvfs", lambda _: os.statvfs_result((1, 4, 10, 9, 3, 0, 0, 0, 0, 255)))
    assert room.free_room(tmp_path).files is None, "Btrfs has no number"


# -- inspection -------------------------------------------------------------------------------------------------------

ELF = b"\x7fELF\2\1\1" + bytes(9) + (2).to_bytes(2, "little") + (62).to_bytes(2, "little") + bytes(44)
SITE = "e/lib/python3.9/site-packages"


def facts_of(tmp_path: Path, *members: tuple[str, bytes]) -> ArchiveFacts:
    packed = write_tar(tmp_path / "e.tar", [(member(name), content) for name, content in members], "w")
    return read_facts(packed, inspect_format(packed))


def inspect_format(packed: Path):
    from naiad.environments.archives.formats import detect_format

    return detect_format(packed)


def test_the_members_of_an_archive_say_what_it_is(tmp_path):
    conda = {"name": "python", "version": "3.9.7"}
    facts = facts_of(
        tmp_path,
        ("e/lib/python3.9/os.py", b"12"),
        ("e/bin/python3.9", ELF),
        ("e/bin/python3", b"not read"),
        ("e/bin/conda-unpack", b"1"),
        ("e/etc/conda/activate.d/a.sh", b"1"),
        ("e/etc/conda/activate.d/deep/b.sh", b"1"),
        ("e/conda-meta/python-3.9.7.json", json.dumps(conda).encode()),
        ("e/conda-meta/some-1.json", json.dumps({"name": "some.thing", "version": 1, "sha256": "ff"}).encode()),
        ("e/conda-meta/bad.json", b"{"),
        (f"{SITE}/Some_Thing-2.dist-info/METADATA", b"Name: Some_Thing\nVersion: 2\n\n"),
        (f"{SITE}/none.dist-info/METADATA", b"Version: 2\n\n"),
        ("../out", b""), ("/abs", b""), ("a/../../b", b""), ("../more", b""),
    )  # fmt: skip
    assert (facts.members, facts.python, facts.is_conda_packed, facts.activation) == (15, "3.9.7", True, ["a.sh"])
    assert facts.executable.system == "linux"
    assert {key: (each.version, each.source, each.digest) for key, each in facts.packages.items()} == {
        "python": ("3.9.7", "conda", ""),
        "some-thing": ("2", "python", ""),
    }
    assert len(facts.problems) == 3
    assert all("a server refuses the archive" in each for each in facts.problems)
    assert facts.size > len(ELF)
    bare = facts_of(tmp_path, ("lib/python3.9/os.py", b"12"), ("x/lib/python3.8/os.py", b"1"))
    assert (bare.python, bare.size, bare.is_conda_packed, bare.executable) == ("3.9", 3, False, None)


def test_an_incomplete_entry_is_inspected_as_one_that_is_unpacked_again(root):
    add_entry(root, A)
    found = inspect_environment(A[:8], root, LogReporter())
    assert (found.kind, found.digest, found.numpy, found.abi) == ("entry", A, "1.2", "cpython-310-x86_64-linux-gnu")
    (root / A / "env" / "bin" / "python").unlink()
    with pytest.raises(ExecutionEnvironmentError, match=r"is incomplete \(its archive was /e.tar\); the next server"):
        inspect_environment(A[:8], root, LogReporter())


def test_an_archive_is_inspected_with_its_entry(root, tmp_path):
    packed = write_tar(tmp_path / "e.tar", [(member("bin/python"), ELF), (member("f"), b"12345")], "w")
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    assert inspect_environment(str(packed), root, LogReporter()).entry is None
    add_entry(root, digest)
    add_entry(root, A)
    found = inspect_environment(str(packed), root, LogReporter())
    assert (found.digest, found.kind, found.files, found.size) == (digest, "tar", 2, len(ELF) + 5)
    assert (found.entry.digest, found.packed_size, found.made_from) == (digest, packed.stat().st_size, "")
    assert found.platform == "linux-x86_64"

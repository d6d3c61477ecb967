"""Each step of an entry's creation and removal, with what another process or thread does between two of them."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from environments.makers import member, write_tar
from filelock import FileLock

from naiad.core.errors import EnvironmentBusyError, ExecutionEnvironmentError
from naiad.environments.progress import LogReporter
from naiad.environments.store import access as access_module
from naiad.environments.store import archive_digest
from naiad.environments.store.archive_digest import fingerprint, identify_archive
from naiad.environments.store.entries import read_entries
from naiad.environments.store.eviction import (
    choose_removals,
    disk_usage,
    explain_kept,
    read_parts,
    remove_entries,
    remove_entry,
    shrink_store,
)
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.store import Store

from .made import DIGESTS, add_entry, complete, start_nothing, write_environment

A, B, C = DIGESTS


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that takes any archive for an environment, and starts no interpreter."""
    start_nothing(monkeypatch)
    return Store(tmp_path / "store", LogReporter())


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "e.tar", [(member("etc/file"), b"x")], "w")


def build(staged: Path, final: Path) -> None:
    assert staged.parent.name.startswith(f"{final.parent.name}.")
    (staged / "built").write_text("x")


def create(store: Store, archive: Path, *, builds: bool = False, **more: str):
    if builds:
        return store.get_or_build(A, build, origin="script.py", **more)
    return store.get_or_unpack(archive, store.identify(archive), **more)


def left_in(store: Store) -> list[str]:
    """The entries and what is in the staging folder."""
    staging = store.root / "staging"
    entries = [path.name for path in store.root.iterdir() if len(path.name) == 64] if store.root.exists() else []
    return sorted(entries + ([path.name for path in staging.iterdir()] if staging.exists() else []))


@pytest.mark.parametrize("builds", [False, True])
def test_an_entry_is_created_once_and_then_found(store, archive, caplog, builds):
    with caplog.at_level(logging.INFO):
        made = create(store, archive, builds=builds, label="m")
        assert create(store, archive, builds=builds) == made
    assert left_in(store) == [made.digest]
    assert (made.prefix / ("built" if builds else "etc/file")).read_text() == "x"
    assert (store.root / made.digest).stat().st_mode & 0o777 == 0o755, "other users may share a store"
    assert caplog.text.count("for 'm'") == caplog.text.count("is ready after") == 1
    assert read_entries(store.root)[0].archive == ("script.py" if builds else str(archive))


def test_a_changed_archive_is_a_new_entry_and_the_old_one_stays(store, archive):
    before = create(store, archive)
    write_tar(archive, [(member("etc/file"), b"y")], "w")
    after = create(store, archive)
    assert left_in(store) == sorted([before.digest, after.digest])
    assert [(each.prefix / "etc/file").read_text() for each in (before, after)] == ["x", "y"]


def test_the_origin_of_a_copied_archive_is_recorded_in_place_of_the_copy(store, archive):
    create(store, archive, origin="s3://bucket/e.tar")
    assert read_entries(store.root)[0].archive == "s3://bucket/e.tar"


@pytest.mark.parametrize("builds", [False, True])
def test_an_entry_that_another_process_created_while_this_one_waited_is_used(
    store, archive, builds, monkeypatch, caplog
):
    """The second look, after the lock."""
    digest = A if builds else store.identify(archive).digest
    monkeypatch.setattr(store, "_complete", pytest.fail)
    waiting = threading.Event()

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is creating it" in record.getMessage():
                waiting.set()

    handler = Waits()
    logging.getLogger("naiad.environments").addHandler(handler)
    found: list[object] = []
    with caplog.at_level(logging.INFO), ExitStack() as ended:
        ended.callback(logging.getLogger("naiad.environments").removeHandler, handler)
        (store.root / "locks").mkdir(parents=True)
        with FileLock(store.root / "locks" / f"{digest}.lock"):
            thread = threading.Thread(target=lambda: found.append(create(store, archive, builds=builds, label="m")))
            thread.start()
            assert waiting.wait(60)
            made = add_entry(store.root, digest)
        thread.join(60)
    assert found == [made]
    who = rf"(process {os.getpid()} \({re.escape(psutil.Process().name())}\)|another process)"  # as the system tells
    assert re.search(rf"waiting for the environment of 'm': {who} is creating it", caplog.text)


def test_a_store_that_does_not_wait_says_that_an_entry_is_being_created(store, archive):
    impatient = Store(store.root, LogReporter(), waits=False)
    (store.root / "locks").mkdir(parents=True)
    with (
        FileLock(store.root / "locks" / f"{impatient.identify(archive).digest}.lock"),
        pytest.raises(EnvironmentBusyError, match=r"cannot use the environment yet: .*process.* is creating it"),
    ):
        create(impatient, archive)


@pytest.mark.parametrize("when", ["read", "waited for", "unpacked"])
def test_an_archive_that_changes_meanwhile_becomes_no_entry(store, archive, monkeypatch, when):
    def change(*arguments, **named):
        result = original(*arguments, **named)
        os.utime(archive, ns=(1, 1))
        return result

    text = "changed while it was read; put archives in place with a rename"
    if when == "read":
        original = archive_digest._compute
        monkeypatch.setattr(archive_digest, "_compute", change)
    else:
        identity = store.identify(archive)
        monkeypatch.setattr(store, "identify", lambda _: identity)
        text = "changed while it was unpacked; load the model again"
    if when == "waited for":
        os.utime(archive, ns=(1, 1))
    elif when == "unpacked":
        from naiad.environments.archives.extraction import unpack as original

        monkeypatch.setattr("naiad.environments.archives.extraction.unpack", change)
    with pytest.raises(ExecutionEnvironmentError, match=text):
        create(store, archive)
    assert left_in(store) == []
    monkeypatch.undo()
    assert identify_archive(archive, store.root / "index", reporter=LogReporter()).fingerprint == fingerprint(archive)


@pytest.mark.parametrize("error", [ExecutionEnvironmentError("broken"), OSError(28, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("step", "builds"),
    [
        ("naiad.environments.archives.extraction.unpack", False),
        ("naiad.environments.archives.manifest.read_manifest", False),
        ("naiad.environments.store.store.require_interpreter", False),
        ("naiad.environments.store.finishing.finish", False),
        ("naiad.environments.store.finishing.finish_built", True),
        (f"{__name__}.build", True),
    ],
)
def test_a_creation_that_ends_at_any_step_leaves_nothing(store, archive, monkeypatch, step, builds, error):
    def fail(*_args, **_more):
        raise error

    with monkeypatch.context() as patch:
        if step.endswith(".build"):
            patch.setitem(create.__globals__, "build", fail)
        else:
            patch.setattr(step, fail)
        with pytest.raises(ExecutionEnvironmentError if isinstance(error, OSError) else type(error)) as caught:
            create(store, archive, builds=builds)
    assert left_in(store) == []
    if isinstance(error, OSError):
        assert caught.value.message == (
            f"cannot use the store of environments at {store.root}: full; choose another folder or correct its permissions"
        )
    assert create(store, archive, builds=builds).prefix.exists(), "its lock is free again"


@pytest.mark.parametrize("builds", [False, True])
def test_what_a_killed_process_left_of_an_entry_is_replaced(store, archive, builds):
    digest = A if builds else store.identify(archive).digest
    write_environment(store.root / digest / "env", {"half": b"x"})
    write_environment(store.root / "staging" / f"{digest}.old", {"half": b"x"})
    made = create(store, archive, builds=builds)
    assert left_in(store) == [digest]
    assert not (made.prefix / "half").exists()


def test_leftovers_are_folders_without_a_record_whose_lock_is_free(store, caplog):
    root = store.root
    add_entry(root, A)
    write_environment(root / B / "env")
    write_environment(root / "staging" / f"{B}.x")
    write_environment(root / "staging" / f"{A}.x")
    write_environment(root / C / "env")  # being created
    write_environment(root / "staging" / f"{C}.x")
    write_environment(root / "notes")
    write_environment(root / ("d" * 63))
    (root / "locks").mkdir()
    with FileLock(root / "locks" / f"{C}.lock"), caplog.at_level(logging.INFO):
        assert store.find_leftovers() == [
            root / "staging" / f"{A}.x", root / B, root / "staging" / f"{B}.x"
        ]  # fmt: skip
        store.remove_leftovers()
        assert store.find_leftovers() == []
    assert left_in(store) == sorted([A, C, f"{C}.x"])
    assert (root / "notes").exists()
    assert caplog.text.count("left by a process that was interrupted") == 3
    assert store.find_leftovers() == [root / C, root / "staging" / f"{C}.x"]


def test_an_entry_that_is_completed_before_its_lock_is_held_is_no_leftover(store, monkeypatch):
    write_environment(store.root / A / "env")
    lock = store._lock

    def complete_first(digest: str):
        complete(store.root / digest)
        return lock(digest)

    monkeypatch.setattr(store, "_lock", complete_first)
    store.remove_leftovers()
    assert store.get(A) is not None


@pytest.mark.parametrize(("writable", "level"), [(True, logging.WARNING), (False, logging.DEBUG)])
def test_leftovers_that_cannot_be_removed_are_logged_as_a_problem_of_who_may_write(
    store, monkeypatch, caplog, writable, level
):
    write_environment(store.root / A / "env")
    write_environment(store.root / B / "env")

    def refuse(digest: str):
        raise ExecutionEnvironmentError("no lock")

    monkeypatch.setattr(store, "_lock", refuse)
    monkeypatch.setattr(access_module.os, "access", lambda *_: writable)
    with caplog.at_level(logging.DEBUG):
        store.remove_leftovers()
    assert [(record.levelno, record.getMessage()[:22]) for record in caplog.records] == [
        (level, f"cannot clean up {letter * 6}") for letter in "ab"
    ]


def test_scratch_folders_are_staged_under_the_lock_and_removed(store):
    with store.scratch(A, "m") as folder:
        assert folder.parent == store.root / "staging"
        assert folder.name.startswith(f"{A}.")
        assert store.find_leftovers() == [], "it is in use"
        with pytest.raises(EnvironmentBusyError), Store(store.root, LogReporter(), waits=False).scratch(A):
            pass
    assert left_in(store) == []
    locked = store._locked(A, "")
    thread = threading.Thread(target=locked.__enter__)
    thread.start()
    thread.join(60)
    locked.__exit__(None, None, None)
    with Store(store.root, LogReporter(), waits=False).scratch(A):
        pass  # released by another thread than the one that took it


@pytest.mark.parametrize(
    ("code", "may_write", "text"),
    [
        (errno.EACCES, False, "cannot put an environment into the store at {root}: no; this server may only use what is"),
        (errno.EROFS, False, "cannot put an environment into the store at {root}: no; this server may only use what is"),
        (errno.EACCES, True, "cannot use the store of environments at {root}: no; choose another folder or correct its"),
        (errno.ENOSPC, False, "cannot use the store of environments at {root}: no; choose another folder or correct its"),
    ],
)  # fmt: skip
def test_a_store_that_cannot_be_written_is_named_with_what_to_do(store, archive, monkeypatch, code, may_write, text):
    store.root.mkdir()

    def fail(*_args, **_more):
        raise OSError(code, "no")

    monkeypatch.setattr(access_module.os, "access", lambda _, mode: may_write or mode != os.W_OK)
    identity = store.identify(archive)
    for broken in ("tempfile.mkdtemp", "pathlib.Path.mkdir"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, fail)
            for use in (lambda: store.get_or_unpack(archive, identity), lambda: store.scratch(A).__enter__()):
                with pytest.raises(ExecutionEnvironmentError) as caught:
                    use()
                assert caught.value.message.startswith(text.format(root=store.root)), broken


# -- removal ----------------------------------------------------------------------------------------------------------


def test_an_entry_is_removed_only_while_nothing_uses_or_creates_it(store):
    root, leases = store.root, EntryLeases(store.root)
    add_entry(root, A)
    lease = leases.acquire(A)
    leases.record_model(A, "m", "/e.tar")
    assert not remove_entry(store, leases, A), "in use"
    lease.release()
    (root / "locks").mkdir(exist_ok=True)
    with FileLock(root / "locks" / f"{A}.lock"):
        assert not remove_entry(store, leases, A), "being created"
    assert (store.get(A) is not None, [use.model for use in leases.models(A)]) == (True, ["m"])
    assert remove_entry(store, leases, A)
    assert (store.get(A), leases.models(A), left_in(store)) == (None, [], [])
    assert not remove_entry(store, leases, A), "removed before"
    assert left_in(store) == []
    assert (root / "uses" / A / "lock").exists(), "another process may hold it"


def test_an_entry_that_comes_into_use_after_it_was_chosen_stays(store, caplog):
    root, leases = store.root, EntryLeases(store.root)
    for digest in DIGESTS:
        add_entry(root, digest, {"data": bytes(100)}, archive=f"/{digest[0]}.tar")
    chosen = choose_removals(read_parts(root), now=0.0, keep_bytes=0)
    lease = leases.acquire(A)

    def remove(digest: str) -> bool:
        if digest == B:
            raise OSError("no")
        return Store.remove(store, digest)

    removed = remove_entries(SimpleNamespace(root=root, remove=remove), leases, chosen)
    assert [each.entry.digest for each in removed] == [C]
    assert caplog.messages == [f"cannot remove the environment of /b.tar from the store {root}: no"]
    assert [each.digest for each in read_entries(root)] == [A, B]
    lease.release()


@pytest.mark.parametrize(("used", "kept"), [("", "bc"), ("a", "ac"), ("abc", "abc")])
def test_a_store_shrinks_to_its_limit_by_what_was_used_least_recently(store, caplog, used, kept):
    root, leases = store.root, EntryLeases(store.root)
    for time, digest in enumerate(DIGESTS, 1):
        add_entry(root, digest, {"data": b"x"}, archive=f"/{digest[0]}.tar", size=(2, 10_000_000))
        leases.acquire(digest).release()
        os.utime(root / "uses" / digest / "lock", (2e9 + time, 2e9 + time))
    held = [leases.acquire(letter * 64, counts=False) for letter in used]
    with caplog.at_level(logging.INFO):
        shrink_store(store, leases, 25_000_000)
    assert "".join(each.digest[0] for each in read_entries(root)) == kept
    assert ("removed the environment of /" in caplog.text) == (kept != "abc")
    assert ("holds 30 MB, more than the 25 MB of --env-store-max-bytes: all" in caplog.text) == (kept == "abc")
    assert held == [] or all(lease._descriptor is not None for lease in held)


def test_what_stays_has_a_reason(store):
    add_entry(store.root, A, {"data": bytes(100)})
    leases = EntryLeases(store.root)
    leases.acquire(A).release()
    [entry] = read_entries(store.root)
    day = 86_400
    now = entry.last_used + 2 * day
    for limits, reason in [
        ({}, "no limit is given: --older-than or --keep-bytes"),
        ({"older_than": 3 * day}, "used 2.0 days ago, and the limit is 3.0 days"),
        ({"keep_bytes": 7_000_000}, "the store with it is within 7 MB"),
        (
            {"older_than": 3 * day, "keep_bytes": 7_000_000},
            "used 2.0 days ago, and the limit is 3.0 days; the store with it is within 7 MB",
        ),
    ]:
        assert explain_kept(entry, now=now, **limits) == reason
    leases.record_model(A, "x", "/e.tar")
    lease = leases.acquire(A)
    [entry] = read_entries(store.root)
    assert explain_kept(entry, now=now) == "a running server uses it, last for x"
    lease.release()
    assert disk_usage([entry]).total == entry.size == 100

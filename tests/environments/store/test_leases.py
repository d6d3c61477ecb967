"""Nothing is removed that anybody uses, in any process; what nobody uses goes by age and by size."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from environments.makers import member, write_tar

from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import LogReporter
from naiad.environments.store.entries import StoreEntry, find_entry, read_entries
from naiad.environments.store.eviction import choose_removals, remove_entry
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.store import Store
from naiad.models.artifacts.garbage import collect_garbage

from .made import start_nothing

DAY = 86_400
HOLD = """
import sys
from pathlib import Path
from naiad.environments.store.leases import EntryLeases
lease = EntryLeases(Path(sys.argv[1])).acquire(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def entry(name: str, *, size: int = 10, age: float = 0.0, in_use: bool = False) -> StoreEntry:
    """An entry that was used so many days before the hundredth."""
    return StoreEntry(
        digest=name,
        folder=Path(name),
        archive=name,
        python="3.10.1",
        numpy="1",
        platform="linux",
        size=size,
        files=1,
        made=0.0,
        last_used=(100 - age) * DAY,
        in_use=in_use,
        models=(),
    )


@pytest.mark.parametrize(
    ("entries", "older_than", "keep_bytes", "chosen"),
    [
        ([entry("a"), entry("b", age=9)], None, None, []),
        ([entry("a", age=31), entry("b", age=29)], 30 * DAY, None, ["a"]),
        ([entry("a", age=31, in_use=True), entry("b", age=40)], 30 * DAY, None, ["b"]),
        ([entry("new", age=1), entry("old", age=3), entry("middle", age=2)], None, 20, ["old"]),
        ([entry("new", age=1), entry("old", age=3), entry("middle", age=2)], None, 19, ["old", "middle"]),
        ([entry("new", age=1), entry("old", age=3)], None, 0, ["old", "new"]),
        ([entry("new", age=1), entry("old", age=3, in_use=True)], None, 10, ["new"]),
        ([entry("a", in_use=True)], None, 0, []),
        # By age first, which may be enough for the size.
        ([entry("a", age=40), entry("b", age=2), entry("c", age=1)], 30 * DAY, 20, ["a"]),
        ([entry("a", age=40), entry("b", age=2), entry("c", age=1)], 30 * DAY, 10, ["a", "b"]),
    ],
)
def test_the_oldest_entry_is_removed_first_and_one_in_use_never(entries, older_than, keep_bytes, chosen):
    found = choose_removals(entries, now=100 * DAY, older_than=older_than, keep_bytes=keep_bytes)
    assert [removal.entry.digest for removal in found] == chosen


def test_a_chosen_entry_has_a_reason():
    found = choose_removals([entry("a", age=40), entry("b", age=2)], now=100 * DAY, older_than=30 * DAY, keep_bytes=0)
    assert [removal.reason for removal in found] == ["not used for 40.0 days", "least recently used of more than 0 MB"]


@pytest.fixture
def archive(tmp_path, monkeypatch) -> Path:
    start_nothing(monkeypatch)
    return write_tar(tmp_path / "e.tar", [(member("file"), b"12345")], "w")


@pytest.fixture
def store(archive, tmp_path) -> Path:
    """A store of one environment."""
    EnvironmentManager(tmp_path / "store").prepare(archive).lease.release()
    return tmp_path / "store"


def only(store: Path) -> StoreEntry:
    (found,) = read_entries(store)
    return found


def remove(store: Path, digest: str) -> bool:
    return remove_entry(Store(store, LogReporter()), EntryLeases(store), digest)


def test_an_environment_stays_until_the_last_reference_to_it_is_gone(store, archive, recorder):
    ready = EnvironmentManager(store, reporter=recorder).prepare(archive, label="m")

    assert only(store).in_use
    assert not remove(store, ready.digest)
    assert ready.python.exists()

    python = ready.python
    del ready
    assert not only(store).in_use
    assert remove(store, only(store).digest)
    assert not python.exists()
    assert not list((store / "staging").iterdir())


def test_two_leases_of_an_entry_are_released_one_by_one(store):
    digest = only(store).digest
    first, second = EntryLeases(store).acquire(digest), EntryLeases(store).acquire(digest)
    first.release()

    assert only(store).in_use
    second.release()
    assert not only(store).in_use


def test_an_entry_in_use_stays_until_the_other_process_ends_in_any_way(store):
    digest = only(store).digest
    command = [sys.executable, "-c", HOLD, str(store), digest]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout.readline() == b"held\n"

        assert not remove(store, digest)
        assert collect_garbage(store, keep_bytes=0).removed == ()
        assert only(store).in_use

        user.kill()
    assert remove(store, digest)


def test_an_inspection_does_not_count_as_a_use(store):
    lock = store / "uses" / only(store).digest / "lock"
    EntryLeases(store).acquire(only(store).digest).release()
    os.utime(lock, (1000, 1000))

    EntryLeases(store).acquire(only(store).digest, counts=False).release()

    assert lock.stat().st_mtime == 1000


def test_a_name_of_no_entry_or_of_two_is_rejected(store):
    with pytest.raises(
        ExecutionEnvironmentError,
        match=r"there is no environment 'x' in .*, which holds 1, and no such file; name one by",
    ):
        find_entry(store, "x")
    json_cache.write(store / ("ab" * 32) / "ready.json", {"archive": "/e"})
    json_cache.write(store / ("ab" * 31 + "cd") / "ready.json", {"archive": "/e"})
    with pytest.raises(ExecutionEnvironmentError, match="'abababa' is ambiguous: 2 environments"):
        find_entry(store, "abababa")
    with pytest.raises(ExecutionEnvironmentError, match="'/e' is ambiguous: 2 environments"):
        find_entry(store, "/e")


def test_garbage_is_shown_before_it_is_removed(store):
    digest, size = only(store).digest, only(store).size
    half = store / "staging" / f"{digest}.half" / "env"
    half.mkdir(parents=True)
    (half / "file").write_bytes(b"x" * 100)

    shown = collect_garbage(store, keep_bytes=0, dry_run=True)
    assert [removal.entry.size for removal in shown.removed] == [size]
    assert (shown.kept, shown.leftovers, shown.leftover_bytes) == (0, 1, 100)
    assert half.exists()
    assert only(store).digest == digest

    assert collect_garbage(store, keep_bytes=0) == shown
    assert read_entries(store) == []
    assert not list((store / "staging").iterdir())


def test_abandoned_downloads_are_garbage(store):
    downloads = store / "downloads"
    downloads.mkdir()
    for name, age in (("old.part", 2 * DAY), ("new.part", 0)):
        (downloads / name).write_bytes(b"x" * 10)
        (downloads / f"{name}.json").write_text("{}")
        os.utime(downloads / name, (time.time() - age, time.time() - age))

    assert collect_garbage(store).leftover_bytes == 10
    assert sorted(path.name for path in downloads.iterdir()) == ["new.part", "new.part.json"]


@pytest.mark.usefixtures("archive")
def test_a_server_keeps_its_store_small_without_touching_what_it_leases(tmp_path, recorder):
    archives = [write_tar(tmp_path / f"{each}.tar", [(member(each), b"x" * 99)], "w") for each in "012"]
    manager = EnvironmentManager(tmp_path / "store", reporter=recorder, policy=StorePolicy(max_bytes=99))
    used = manager.prepare(archives[0])
    manager.prepare(archives[1])

    newest = manager.prepare(archives[2])

    assert sorted(Path(entry.archive).name for entry in read_entries(tmp_path / "store")) == ["0.tar", "2.tar"]
    assert used.python.exists()
    assert newest.python.exists()

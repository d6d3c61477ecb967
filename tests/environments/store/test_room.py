"""Room for a new environment: made before it is unpacked, from what is unused, or refused with how to make it."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from environments.makers import member, write_tar

from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.archives.manifest import MANIFEST_NAME
from naiad.environments.progress import LogReporter
from naiad.environments.store import room
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.room import FreeRoom, make_room, needed_room
from naiad.environments.store.store import Store

MB = 1_000_000


def entry(root: Path, letter: str) -> None:
    record = {"archive": f"/{letter}.tgz", "made": 0.0, "size": [1, 40 * MB], "interpreter": {"version": [3, 10, 1]}}
    json_cache.write(root / (letter * 64) / "ready.json", record)


def archive(folder: Path, size: int) -> Path:
    manifest = {"format": 1, "name": "", "made_from": "recipe", "platform": "linux-x86_64", "glibc": "", "python": ""}
    manifest |= {"abi": "", "packages": [], "files": 0, "size": size, "recipe": {}}
    return write_tar(folder / "e.tar", [(member(MANIFEST_NAME), json.dumps(manifest).encode())])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """On a disk of 100 MB with two entries of 40 MB, of which the first was used earlier."""
    root = tmp_path / "store"
    for letter in "ab":
        entry(root, letter)
        EntryLeases(root).acquire(letter * 64).release()

    def free(_: Path) -> FreeRoom:
        return FreeRoom(size=100 * MB - 40 * MB * len(list(root.glob("*/ready.json"))), files=None)

    monkeypatch.setattr(room, "free_room", free)
    return Store(root, LogReporter())


def make(store: Store, size: int, max_bytes: int) -> str:
    """Make room; the letters of the entries that stay."""
    make_room(store, EntryLeases(store.root), archive(store.root.parent, size), "/new.tar", max_bytes=max_bytes)
    return "".join(sorted(path.parent.name[0] for path in store.root.glob("*/ready.json")))


@pytest.mark.parametrize(
    ("size", "max_bytes", "stay"),
    [
        (10 * MB, 100 * MB, "ab"),
        (30 * MB, 100 * MB, "b"),  # beyond the limit, and beyond the disk
        (30 * MB, 10**12, "b"),  # within the limit; the disk has less
        (90 * MB, 10**12, ""),
        (10 * MB, 0, "ab"),
    ],
)
def test_unused_environments_go_before_a_new_one_is_unpacked(store, caplog, size, max_bytes, stay):
    with caplog.at_level(logging.INFO):
        assert make(store, size, max_bytes) == stay
    assert caplog.text.count("from the store, which needs room for the environment of /new.tar") == 2 - len(stay)


def test_environments_in_use_stay_and_the_error_says_what_to_do(store):
    lease = EntryLeases(store.root).acquire("a" * 64)
    with pytest.raises(ExecutionEnvironmentError) as refused:
        make(store, 90 * MB, 10**12)
    lease.release()

    assert refused.value.message == (
        f"no space to unpack /new.tar: it takes 90 MB, and 60 MB are free on the disk of {store.root}; make room "
        "there, or name another --env-store"
    )


def test_a_store_without_a_limit_loses_nothing_and_the_error_names_what_would_be_freed(store):
    with pytest.raises(ExecutionEnvironmentError, match=re.escape("`naiad env gc --keep-bytes=0` frees 80 MB of it")):
        make(store, 90 * MB, 0)
    assert make(store, MB, 0) == "ab"


def test_the_room_for_an_archive_that_does_not_state_it_is_estimated(tmp_path):
    packed = write_tar(tmp_path / "e.tar.xz", [(member("README"), b"x")], "w:xz")

    needed = needed_room(packed)

    assert (needed.size, needed.is_stated) == (4 * packed.stat().st_size, False)

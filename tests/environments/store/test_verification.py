"""Alterations of what was unpacked are found file by file, and archives are tried as a server would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from environments import makers
from environments.makers import member, write_tar

from naiad.core import json_cache
from naiad.environments.progress import LogReporter
from naiad.environments.store.entries import read_entries
from naiad.environments.store.inspection import inspect_environment
from naiad.environments.store.verification import verify_entries


@pytest.fixture
def store(filled, tmp_path) -> Path:
    """A store of one environment, to be altered."""
    return shutil.copytree(filled, tmp_path / "store", symlinks=True)


def prefix(store: Path) -> Path:
    (entry,) = read_entries(store)
    return entry.folder / "env"


def problem(store: Path) -> str:
    (verdict,) = verify_entries(store, ())
    return verdict.problem


@pytest.mark.server
def test_changes_by_conda_unpack_are_part_of_the_entry(manager, tmp_path, minor):
    """conda-unpack rewrites prefixes: that is how it has to be."""
    some = makers.make_environment(tmp_path / "some", minor, conda=True)
    manager.prepare(makers.conda_pack(some, tmp_path / "some.tar.gz"))

    assert problem(manager.store_root) == ""


def test_files_that_a_later_entry_made_read_only_count_as_unchanged(store):
    (verdict,) = verify_entries(store, ())
    (entry,) = read_entries(store)
    record = json.loads((entry.folder / "files.json").read_text())
    before = {name: (mode, digest) for name, (mode, digest) in record["content"].items() if mode == "444"}
    assert before
    record["content"].update({name: ["644", digest] for name, (_, digest) in before.items()})
    (entry.folder / "files.json").write_text(json.dumps(record))

    assert verdict.is_intact
    assert problem(store) == ""


def change(prefix: Path) -> str:
    path = prefix / "etc" / "where.txt"
    facts = path.stat()
    path.write_text(path.read_text().replace("installed", "tampered!"))
    __import__("os").utime(path, ns=(facts.st_mtime_ns, facts.st_mtime_ns))
    return "etc/where.txt changed"


def chmod(prefix: Path) -> str:
    (prefix / "etc" / "where.txt").chmod(0o777)
    return "etc/where.txt changed"


def drop(prefix: Path) -> str:
    (prefix / "etc" / "where.txt").unlink()
    return "etc/where.txt missing"


def add(prefix: Path) -> str:
    (prefix / "lib" / "sitecustomize.py").write_text("")
    return "lib/sitecustomize.py added"


def turn(prefix: Path) -> str:
    link = prefix / "bin" / "python3"
    link.unlink()
    link.symlink_to("elsewhere")
    return "bin/python3 changed"


def many(prefix: Path) -> str:
    for number in range(7):
        (prefix / f"new{number}").write_text("")
    return "new0, new1, new2, new3, new4 and 2 more added"


@pytest.mark.parametrize("alter", [change, chmod, drop, add, turn, many])
def test_every_alteration_is_named(alter, store):
    said = alter(prefix(store))
    digest = read_entries(store)[0].digest

    assert problem(store) == (
        f"it was altered after it was unpacked: {said}; stop its users and remove it with `naiad env remove {digest[:12]}`, "
        "so that the next server unpacks it again"
    )


def test_an_entry_of_an_older_version_says_that_nothing_was_recorded(store):
    (prefix(store).parent / "files.json").unlink()
    assert problem(store).startswith(
        "no digests were recorded when it was unpacked (by an older naiad): remove it with"
    )


def test_an_archive_with_a_windows_interpreter_is_said_to_be_one(tmp_path):
    packed = write_tar(tmp_path / "w.tgz", [(member("python.exe", mode=0o755), b"MZ\x90\0")])
    assert inspect_environment(str(packed), tmp_path / "store", LogReporter()).platform == "windows"


def test_records_of_files_are_small_enough_to_be_read_by_people(filled):
    record = json_cache.read(read_entries(filled)[0].folder / "files.json")
    assert record is not None
    assert record["content"]["bin/python"][0] == "link"
    assert json.dumps(record).count("etc/where.txt") == 1

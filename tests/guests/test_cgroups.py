"""Control groups of guests: found, made, limited, ended and removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import until

from naiad.guests import cgroups
from naiad.guests.cgroups import GuestCgroup, Hierarchy, hierarchies_of

needs_cgroups = pytest.mark.skipif(not cgroups.find_hierarchies(), reason="this system lets us make no control groups")
needs_limits = pytest.mark.skipif(
    not any("memory" in each.controllers for each in cgroups.find_hierarchies()),
    reason="this system lets us limit no memory",
)


def mount(root, at, kind, options="rw"):
    return f"30 23 0:26 {root} {at} rw,nosuid shared:4 - {kind} {kind} {options}"


@pytest.fixture
def version_2(tmp_path):
    """A directory that looks like a group of version 2 below which memory may be limited."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    return tmp_path


def test_the_group_of_this_server_is_found_below_each_mount(version_2):
    own = version_2 / "system.slice" / "naiad.service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("memory pids\n")
    found = hierarchies_of([mount("/", version_2, "cgroup2")], ["0::/system.slice/naiad.service"])
    assert list(found) == [Hierarchy(own, 2, frozenset({"memory", "pids"}))]


def test_a_container_sees_its_part_of_the_hierarchy(version_2):
    mounts = [mount("/docker/abc", version_2, "cgroup2"), mount("/docker/other", "/elsewhere", "cgroup2")]
    assert [each.group for each in hierarchies_of(mounts, ["0::/docker/abc"])] == [version_2]


def test_version_1_has_one_hierarchy_for_each_controller():
    mounts = [
        mount("/", "/sys/fs/cgroup/memory", "cgroup", "rw,memory"),
        mount("/", "/sys/fs/cgroup/cpuset", "cgroup", "rw,cpuset"),
        mount("/", "/proc", "proc"),
    ]
    assert list(hierarchies_of(mounts, ["4:memory:/user/1", "3:cpuset:/"])) == [
        Hierarchy(Path("/sys/fs/cgroup/memory/user/1"), 1, frozenset({"memory"}))
    ]


def test_a_limit_of_version_2_excludes_swap_and_ends_the_whole_group(version_2, monkeypatch):
    monkeypatch.setattr(cgroups, "find_hierarchies", lambda: (Hierarchy(version_2, 2, frozenset({"memory"})),))
    group = cgroups.create(123456)
    assert group.memory_limit == 123456
    (directory,) = version_2.glob("naiad-guest-*")
    assert {file.name: file.read_text() for file in directory.iterdir()} == {
        "memory.max": "123456",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    }


def test_a_process_killed_for_the_limit_is_told_from_others(tmp_path):
    group = GuestCgroup([tmp_path], 1)
    assert not group.has_exceeded_memory()
    (tmp_path / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 0\n")
    assert not group.has_exceeded_memory()
    (tmp_path / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 2\n")
    assert group.has_exceeded_memory()


def test_no_group_is_made_without_permission(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroups, "find_hierarchies", lambda: ())
    assert cgroups.create() is None
    monkeypatch.setattr(
        cgroups, "find_hierarchies", lambda: (Hierarchy(tmp_path / "missing", 2, frozenset({"memory"})),)
    )
    assert cgroups.create(1 << 20) is None


def test_groups_of_servers_that_were_killed_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    abandoned, ours, other = (
        tmp_path / f"naiad-guest-{ended.pid}-3",
        tmp_path / f"naiad-guest-{os.getpid()}-0",
        tmp_path / "naiad-guest-book-1",
    )
    for directory in (abandoned, ours, other):
        directory.mkdir()
    cgroups.remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([ours, other])


@needs_cgroups
def test_a_process_that_left_its_session_is_killed_with_its_group():
    group = cgroups.create()
    program = "import os, sys; input(); os.fork() or os.setsid(); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        group.add(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.read(2) == b"\n\n"
        assert len(group.pids()) == 2
        assert not group.remove()
        group.kill()
        assert process.wait(60) == -9
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()
        until(group.remove, "the group to be empty")
    assert group.pids() == []
    assert not group.has_exceeded_memory()
    assert group.remove(), "removing it twice does nothing"


@needs_limits
def test_a_process_that_uses_more_memory_than_its_group_may_is_killed():
    group = cgroups.create(64 << 20)
    assert group.memory_limit == 64 << 20
    program = "input(); bytearray(b'x') * (200 << 20)"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        group.add(process.pid)
        process.communicate(b"\n", timeout=60)
        assert process.returncode == -9
        assert group.has_exceeded_memory()
    finally:
        process.kill()
        process.wait()
        until(group.remove, "the group to be empty")

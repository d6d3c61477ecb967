"""What the machine or container gives this process."""

from __future__ import annotations

import os
import resource

import pytest

from naiad.core.errors import UnsupportedRequestError
from naiad.guests.memory import machine
from naiad.guests.memory.machine import available_memory, cgroup_limits, require_proc

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def limits(monkeypatch):
    """Sets the limit of a cgroup and that on address space; neither by default."""

    def set_limits(*cgroups: int, address_space: int = resource.RLIM_INFINITY) -> None:
        monkeypatch.setattr(machine, "cgroup_limits", lambda *_: iter(cgroups))
        monkeypatch.setattr(resource, "getrlimit", lambda _: (address_space, resource.RLIM_INFINITY))

    return set_limits


def test_the_least_limit_counts(limits):
    limits()
    assert available_memory() == MACHINE
    limits(2000, 1000, address_space=3000)
    assert available_memory() == 1000
    limits(2000, address_space=1500)
    assert available_memory() == 1500
    limits(2 * MACHINE)
    assert available_memory() == MACHINE


def test_the_limits_of_a_group_and_of_those_above_it_are_read(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/above/own\n")
    own = tmp_path / "mounted" / "above" / "own"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.max").write_text("4096\n")
    assert list(cgroup_limits(membership, tmp_path / "mounted")) == [4096]
    (own / "memory.max").write_text("1000\n")
    assert list(cgroup_limits(membership, tmp_path / "mounted")) == [1000, 4096]


def test_version_1_shows_a_huge_number_where_there_is_no_limit(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/own\n")
    file = tmp_path / "mounted" / "memory" / "own" / "memory.limit_in_bytes"
    file.parent.mkdir(parents=True)
    for text, expected in [(str((1 << 63) - 4096), []), (str(1 << 60), []), ("4096", [4096])]:
        file.write_text(text)
        assert list(cgroup_limits(membership, tmp_path / "mounted")) == expected


def test_a_system_without_proc_is_rejected(monkeypatch, tmp_path):
    require_proc()
    missing = tmp_path / "stat"
    monkeypatch.setattr(machine, "_PROC", missing)
    with pytest.raises(UnsupportedRequestError) as caught:
        require_proc()
    assert str(caught.value) == (
        f"cannot run models: {missing} does not exist, and the server reads in /proc what guests do and which processes "
        "they started; mount it: mount -t proc proc /proc (a chroot or container without it hides it)"
    )

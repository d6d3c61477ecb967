"""How many processors a process may use: by its affinity, and by the quotas of control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from naiad_stub import process_limits
from naiad_stub.process_limits import processor_quota, usable_processors

V1 = "5:memory:/box\n4:cpu,cpuacct:/box\n"
V2 = "0::/pod/box\n"


def limits(tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if membership:
        (tmp_path / "membership").write_text(membership)
    return tmp_path / "membership", tmp_path


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        (V2, {}, None),
        (V2, {"cpu.max": "max 100000\n"}, None),
        (V2, {"cpu.max": "150000 100000\n"}, 1.5),
        (V2, {"pod/cpu.max": "50000 100000\n", "pod/box/cpu.max": "max 100000\n"}, 0.5),
        (V2, {"pod/cpu.max": "400000 100000\n", "pod/box/cpu.max": "20000 10000\n"}, 2),
        (V2, {"pod/cpu.max": "max 100000\n", "other/cpu.max": "50000 100000\n"}, None),
        (V1, {"cpu/box/cpu.cfs_quota_us": "-1\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"cpu/box/cpu.cfs_quota_us": "200000\n", "cpu/box/cpu.cfs_period_us": "100000\n"}, 2),
        # Without links, the hierarchy has the names of all its controllers.
        (V1, {"cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/box/cpu.cfs_period_us": "20000\n"}, 2.5),
        # Within a container, whose own group is mounted at the root.
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "200000\n"}, None),
        # Without /proc.
        ("", {"cpu.max": "150000 100000\n"}, 1.5),
        ("", {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        (V2, {"cpu.max": "what is this\n"}, None),
    ],
)
def test_the_least_quota_of_a_group_and_those_above_it_counts(tmp_path, membership, files, quota):
    assert processor_quota(*limits(tmp_path, membership, files)) == quota


@pytest.mark.parametrize(
    ("affinity", "quota", "usable"),
    [(8, "max", 8), (8, "150000", 2), (8, "400000", 4), (2, "400000", 2), (8, "1000", 1)],
)
def test_affinity_and_quota_bound_the_number_of_processors(tmp_path, monkeypatch, affinity, quota, usable):
    monkeypatch.setattr(process_limits.os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    assert usable_processors(*limits(tmp_path, V2, {"cpu.max": f"{quota} 100000\n"})) == usable


def test_the_affinity_of_this_process_is_what_the_kernel_says():
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(own)})
        assert usable_processors() == 1
    finally:
        os.sched_setaffinity(0, own)

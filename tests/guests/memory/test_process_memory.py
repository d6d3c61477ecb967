"""The memory of a process, as Linux reports it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from naiad.guests.memory import processes
from naiad.guests.memory.processes import may_use_gpu, memory_of, parse_pss, process_memory

SMAPS = "00400000-7fff [rollup]\nRss:  900 kB\nPss:                 123 kB\nPss_Anon:  100 kB\n"


def test_the_proportional_size_is_read():
    assert parse_pss(SMAPS) == 123 * 1024
    assert parse_pss("Rss: 1 kB\n") == 0


def test_a_process_that_has_exited_uses_nothing(tmp_path):
    assert process_memory(7, tmp_path) == 0


def test_a_process_of_another_user_counts_by_what_it_does_not_share(tmp_path, monkeypatch):
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "statm").write_text("1000 500 200 1 0 300 0\n")
    (folder / "smaps_rollup").write_text(SMAPS)
    read_text = Path.read_text

    def refuse(path, *arguments):
        if path.name == "smaps_rollup":
            raise PermissionError
        return read_text(path, *arguments)

    assert process_memory(7, tmp_path) == 123 * 1024
    monkeypatch.setattr(Path, "read_text", refuse)
    assert process_memory(7, tmp_path) == 300 * os.sysconf("SC_PAGE_SIZE")


def test_the_measured_memory_grows_with_an_allocation():
    before = memory_of([os.getpid()])[os.getpid()]
    with mmap.mmap(-1, 32 << 20) as held:  # the heap may have as many pages that are free
        held.write(b"x" * len(held))
        assert memory_of([os.getpid()])[os.getpid()] - before > len(held) // 2
    with pytest.raises(KeyError):
        memory_of([])[os.getpid()]


@pytest.mark.parametrize(("maps", "uses"), [("libc.so.6", False), ("libcuda.so.580", True), ("/dev/nvidia0", True)])
def test_a_process_uses_a_gpu_if_it_has_mapped_the_driver(tmp_path, maps, uses):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(f"7f00-7f01 r-xp 0000 08:01 1 /usr/lib/{maps}\n")

    assert may_use_gpu(7, tmp_path) == uses
    assert not may_use_gpu(8, tmp_path)


@pytest.mark.parametrize(("namespace", "counts"), [("4026531836", True), ("4026532001", False)])
def test_in_a_container_a_process_with_the_number_of_one_outside_gets_none_of_its_gpu_memory(
    monkeypatch, namespace, counts
):
    """The driver reports the numbers of the machine."""
    own = os.getpid()
    monkeypatch.setattr(processes, "gpu_memory_of_processes", lambda: {own: 1 << 40})
    monkeypatch.setattr(processes.os, "readlink", lambda _path: f"pid:[{namespace}]")

    assert (memory_of([own])[own] > 1 << 40) == counts


def test_gpu_memory_is_added_for_the_processes_that_use_some(monkeypatch):
    monkeypatch.setattr(processes, "gpu_memory_of_processes", lambda: {7: 1000, 9: 5})
    monkeypatch.setattr(processes, "process_memory", {7: 10, 8: 20}.__getitem__)
    monkeypatch.setattr(processes, "_has_machines_pids", lambda: True)
    assert memory_of(iter([7, 8])) == {7: 1010, 8: 20}


@pytest.mark.parametrize("text", ["", "1000 500", "a b c"])
def test_a_process_that_exits_while_it_is_read_uses_nothing(tmp_path, monkeypatch, text):
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "statm").write_text(text)
    (folder / "smaps_rollup").mkdir()
    monkeypatch.setattr(processes, "parse_pss", pytest.fail)
    assert process_memory(7, tmp_path) == 0

    def refuse(path):
        if path.name == "smaps_rollup":
            raise PermissionError
        return text

    monkeypatch.setattr(Path, "read_text", refuse)
    assert process_memory(7, tmp_path) == 0


def test_what_cannot_be_read_of_a_process_leaves_it_its_gpu_memory(monkeypatch, tmp_path):
    def refuse(_path):
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert may_use_gpu(7, tmp_path)
    monkeypatch.setattr(processes, "gpu_memory_of_processes", lambda: {7: 1000})
    monkeypatch.setattr(processes, "process_memory", lambda _pid: 10)
    monkeypatch.setattr(processes.os, "readlink", refuse)
    assert memory_of([7]) == {7: 1010}

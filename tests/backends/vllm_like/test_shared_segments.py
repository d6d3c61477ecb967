"""Which segments of killed engines are removed: those of processes that have exited."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.waiting import until


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of segments, and that of records."""
    from vllm_like.engines import vllm_leftovers

    segments, records = tmp_path / "shm", tmp_path / "records"
    segments.mkdir()
    records.mkdir()
    monkeypatch.setattr(vllm_leftovers, "SEGMENTS", segments)
    monkeypatch.setattr(vllm_leftovers, "_folder", lambda: records)
    return segments, records


def test_a_zombie_counts_as_an_exited_process(places: tuple[Path, Path]) -> None:
    """It is in the table of processes, with its start time, until its parent waits for it."""
    from vllm_like.engines import vllm_leftovers

    segments, records = places
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        (segments / "psm_left").touch()
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        (records / f"{process.pid}.json").write_text(json.dumps({"started": started, "names": ["psm_left"]}))
        assert vllm_leftovers.remove_abandoned() == []
        process.kill()
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "the process to end")
        assert vllm_leftovers.remove_abandoned() == ["psm_left"]
    assert list(segments.iterdir()) == []
    assert list(records.iterdir()) == []

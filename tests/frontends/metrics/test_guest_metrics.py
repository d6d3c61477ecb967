"""What a guest is said to have died of, and what the store of environments is said to hold."""

from __future__ import annotations

import json

import pytest
from fakes.engine import sample_instance

from naiad.core.errors import GuestExitedError
from naiad.engine.serving.instance import exit_label
from naiad.environments.store.entries import entry_sizes
from naiad.frontends.metrics.families import render
from naiad.frontends.metrics.naiad_families import guest_families, store_families


@pytest.mark.parametrize(
    ("status", "reason"),
    [(-9, "SIGKILL"), (-11, "SIGSEGV"), (0, "exit 0"), (3, "exit 3"), (None, "unknown"), (-250, "signal 250")],
)
def test_an_exit_has_its_signal_or_exit_code_as_reason(status, reason):
    assert exit_label(GuestExitedError("it died", exit_status=status)) == reason


def test_the_size_of_a_store_is_read_from_the_records_of_its_entries(tmp_path):
    for digest, record in (("a" * 64, {"size": [3, 100]}), ("b" * 64, {"size": [1, 20]}), ("c" * 64, {"size": "?"})):
        (tmp_path / digest).mkdir()
        (tmp_path / digest / "ready.json").write_text(json.dumps(record))
    (tmp_path / "staging").mkdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "ready.json").write_text('{"size": [1, 7]}')
    assert sorted(entry_sizes(tmp_path)) == [20, 100]
    assert entry_sizes(tmp_path / "nowhere") == []
    assert b"naiad_environment_store_bytes 120\n" in render(store_families([20, 100]))


def test_an_exited_guest_has_no_memory_and_is_not_alive():
    text = render(guest_families([sample_instance("m", pid=0, restarts={"exit 1": 2})])).decode()
    assert 'naiad_guests_alive{model="m",version="1"} 0\n' in text
    assert 'naiad_guest_restarts_total{instance="m_0",model="m",reason="exit 1",version="1"} 2\n' in text
    assert "naiad_guest_memory_bytes" not in text

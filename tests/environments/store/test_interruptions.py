"""A fault at every file operation of a store: see `interrupted`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("unpack", "kill"),
        ("unpack", "full"),
        pytest.param("unpack", "slow", marks=pytest.mark.endurance),
        pytest.param("unpack", "slow-kill", marks=pytest.mark.endurance),
        pytest.param("build", "kill", marks=pytest.mark.endurance),
        pytest.param("build", "full", marks=pytest.mark.endurance),
        pytest.param("build", "slow", marks=pytest.mark.endurance),
        pytest.param("build", "slow-kill", marks=pytest.mark.endurance),
        ("remove", "kill"),
        ("remove", "full"),
        ("remove", "slow"),
        ("remove", "slow-kill"),
    ],
)
def test_an_entry_is_whole_or_absent_whatever_happens_at_any_file_operation(tmp_path, operation, fault):
    done = subprocess.run(
        [sys.executable, "-m", "environments.store.interrupted", tmp_path, operation, fault],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("platform", "stubs", "tests"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

"""The order of the endurance tier, and the last line of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from support.selection import rotate
from support.system_packages import summary

ROOT = Path(__file__).parents[2]


class Item(NamedTuple):
    nodeid: str


ITEMS = [Item(f"tests/folder/test_{file:02}.py::test_{number}") for file in range(21) for number in range(3)]


def test_ten_turns_in_a_row_begin_at_most_a_seventh_of_the_files_apart():
    for first in range(100):
        begins = set()
        for turn in range(first, first + 10):
            items = list(ITEMS)
            rotate(items, turn)
            begins.add(ITEMS.index(items[0]) // 3)
            assert sorted(items) == ITEMS
        assert all(any((file - back) % 21 in begins for back in range(4)) for file in range(21))


def test_tests_of_a_file_stay_together_in_their_order():
    items = list(ITEMS)
    rotate(items, 5)
    assert [item.nodeid.partition("::")[2] for item in items] == ["test_0", "test_1", "test_2"] * 21


def test_endurance_tests_that_would_begin_too_late_are_skipped_and_all_others_run(tmp_path):
    path = tmp_path / "test_two.py"
    path.write_text("import pytest\n\n@pytest.mark.endurance\ndef test_long(): ...\n\ndef test_short(): ...\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NAIAD_TEST_", "PYTEST_"))}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "tests", ROOT / "platform", ROOT / "stubs")))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "-p",
        "conftest",
        "--within=-1",
        "-c",
        ROOT / "pyproject.toml",
        path,
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert "the time for endurance tests is over" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert done.returncode == 0


def test_the_last_line_counts_the_tests_that_lacked_each_program():
    reasons = ["Skipped: not installed: chromium, chromedriver", "Skipped: not installed: chromium", "Skipped: no GPU"]
    assert summary(reasons) == (
        "2 tests skipped for want of chromium (2), chromedriver (1); run `make system-packages` as root"
    )
    assert not summary(["Skipped: no GPU"])

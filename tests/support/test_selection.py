"""Shares of the test files: together they are all files, each one is in a single share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.selection import deselect_other_shares

ROOT = Path(__file__).parents[2]


class Item(NamedTuple):
    nodeid: str


ITEMS = [Item(f"tests/folder/test_{file}.py::test_{number}") for file in range(20) for number in range(3)]


def test_each_file_is_whole_in_one_share():
    shares = []
    for number in (1, 2, 3):
        items = list(ITEMS)
        others = deselect_other_shares(items, f"{number}/3")
        assert sorted([*items, *others]) == sorted(ITEMS)
        shares.append({item.nodeid.partition("::")[0] for item in items})
    assert set.union(*shares) == {item.nodeid.partition("::")[0] for item in ITEMS}
    assert sum(map(len, shares)) == len(set.union(*shares))
    assert all(shares)


def test_shares_have_equally_many_files_and_those_of_a_folder_are_in_different_ones():
    folders = [[Item(f"tests/{folder}/test_{file:02}.py::test") for file in range(10)] for folder in "abcde"]
    for number in range(1, 11):
        items = [item for folder in folders for item in folder]
        deselect_other_shares(items, f"{number}/10")
        assert [len({*items} & {*folder}) for folder in folders] == [1] * 5


def test_shares_are_of_the_tests_that_run_at_all():
    """A share of those that a marker chooses is not empty because none of its files has any."""
    files = ["tests/cli/test_commands.py", "tests/support/test_selection.py"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "server", *files]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NAIAD_TEST_", "PYTEST_"))}
    for share, code in (("1/1", 0), ("1/2", 0), ("2/2", 5)):  # of the one file with such tests
        done = subprocess.run(
            [*command, f"--share={share}"],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ("test_commands.py::" in done.stdout, done.returncode) == (code == 0, code), share


def test_tests_that_belong_to_no_share_stay_in_each():
    shares = []
    for number in (1, 2):
        items = list(ITEMS)
        deselect_other_shares(items, f"{number}/2", lambda item: item.nodeid.endswith("_0"))
        shares.append(set(items))
    assert shares[0] | shares[1] == set(ITEMS)
    assert shares[0] & shares[1] == {item for item in ITEMS if not item.nodeid.endswith("_0")}


def test_a_single_share_is_everything():
    items = list(ITEMS)
    assert deselect_other_shares(items, "1/1") == []
    assert items == ITEMS


@pytest.mark.parametrize("share", ["0/3", "4/3", "third", "1/0", "1", ""])
def test_an_invalid_share_is_refused_with_an_example(share):
    with pytest.raises(
        pytest.UsageError, match=f"cannot run the share '{share}' of the tests: give K/N, K from 1 to N, such as 1/3"
    ):
        deselect_other_shares(list(ITEMS), share)


def test_tests_that_start_servers_too_late_are_skipped_and_all_others_run():
    files = ["tests/support/test_server_process.py", "tests/support/test_selection.py"]
    command = [sys.executable, "-m", "pytest", "-rs", "--within=-1", "-k", "server_process or single", *files]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NAIAD_TEST_", "PYTEST_"))}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert "the time for tests that are slow or start servers is over" in done.stdout
    assert "1 passed" in done.stdout
    assert done.returncode == 0

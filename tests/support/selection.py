"""Which of the collected tests run, and in which order: shares of the files, and the longest files first."""

from __future__ import annotations

import re
import zlib
from collections import Counter

import pytest


def deselect_other_shares(items: list[pytest.Item], share: str) -> list[pytest.Item]:
    """Remove the tests of other shares than the *share* "K/N" from *items*; the removed ones.

    Raises:
        pytest.UsageError: If that is no share.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", share)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise pytest.UsageError(f"cannot run the share '{share}' of the tests: give K/N, K from 1 to N, such as 1/3")
    other = [item for item in items if zlib.crc32(_file_of(item).encode()) % count != number - 1]
    items[:] = [item for item in items if zlib.crc32(_file_of(item).encode()) % count == number - 1]
    return other


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def put_longest_first(items: list[pytest.Item]) -> None:
    """In a parallel run, begin with the files that take longest, so that none of them runs alone at the end.

    They are recognised by a longer timeout and by tests marked as slow. Xdist itself begins with the files that have
    most tests, but the longest files have one or two (so `make test` turns that off).
    """
    limits: dict[str, float] = {}
    slow: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for item in items:
        file = _file_of(item)
        marker = item.get_closest_marker("timeout")
        limits[file] = max(limits.get(file, 0), marker.args[0] if marker is not None and marker.args else 0)
        slow[file] += item.get_closest_marker("slow") is not None
        tests[file] += 1

    def weight(item: pytest.Item) -> tuple[float, int, int]:
        file = _file_of(item)
        return limits[file], slow[file], tests[file]

    items.sort(key=weight, reverse=True)  # stable: tests of a file stay together, in the order they have

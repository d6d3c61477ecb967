"""Which of the collected tests run, and in which order: shares of the files, and the longest files first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest


def deselect_other_shares(
    items: list[pytest.Item], share: str, belongs: Callable[[pytest.Item], bool] = lambda _: True
) -> list[pytest.Item]:
    """Remove tests of other shares than *share* from *items*.

    The files are dealt out in the order of their names: shares have equally many, and none is empty while there are as
    many files. Those of a folder, whose tests take equally long, are in different ones.

    Args:
        items: Collected tests.
        share: "K/N".
        belongs: Which of them belong to shares at all; the others stay.

    Returns:
        The removed ones.

    Raises:
        pytest.UsageError: If that is no share.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", share)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise pytest.UsageError(f"cannot run the share '{share}' of the tests: give K/N, K from 1 to N, such as 1/3")
    files = sorted({_file_of(item) for item in items if belongs(item)})
    share_files = set(files[number - 1 :: count])
    kept: list[pytest.Item] = []
    removed: list[pytest.Item] = []
    for item in items:
        (kept if _file_of(item) in share_files or not belongs(item) else removed).append(item)
    items[:] = kept
    return removed


def is_slow(item: pytest.Item) -> bool:
    """Whether a test is marked as slow."""
    return item.get_closest_marker("slow") is not None


def starts_quick_server(item: pytest.Item) -> bool:
    """Whether a test starts a server and is not slow."""
    return item.get_closest_marker("server") is not None and not is_slow(item)


def is_sampled(item: pytest.Item) -> bool:
    """Whether CI runs a share of the tests of this kind: those that are slow or start servers."""
    return is_slow(item) or item.get_closest_marker("server") is not None


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def put_longest_first(items: list[pytest.Item], *, sampled_last: bool = False) -> None:
    """In a parallel run, begin with the files that take longest, so that none of them runs alone at the end.

    They are recognised by a longer timeout and by tests marked as slow. Xdist itself begins with the files that have
    most tests, but the longest files have one or two (so `make test` turns that off).

    Args:
        items: Collected tests.
        sampled_last: Whether files of which CI runs a share come after all others: they may be left out.
    """
    limits: dict[str, float] = {}
    slow: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    sampled: set[str] = set()
    for item in items:
        file = _file_of(item)
        if is_sampled(item):
            sampled.add(file)
        marker = item.get_closest_marker("timeout")
        limits[file] = max(limits.get(file, 0), marker.args[0] if marker is not None and marker.args else 0)
        slow[file] += is_slow(item)
        tests[file] += 1

    def weight(item: pytest.Item) -> tuple[bool, float, int, int]:
        file = _file_of(item)
        return sampled_last and file not in sampled, limits[file], slow[file], tests[file]

    items.sort(key=weight, reverse=True)  # stable: tests of a file stay together, in the order they have

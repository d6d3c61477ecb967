"""In which order the collected tests run: the longest files first, or those of the endurance tier from where it is their turn."""

from __future__ import annotations

from collections import Counter

import pytest

_STEP = 0.618034
"""The golden section: the begins of ten rotations in a row are at most a seventh of all files apart."""


def is_endurance(item: pytest.Item) -> bool:
    """Whether a test belongs to the tier `make endurance`."""
    return item.get_closest_marker("endurance") is not None


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def rotate(items: list[pytest.Item], turn: int) -> None:
    """Begin at another file in each turn, so that runs which end before the last test reach all tests together.

    Args:
        items: Collected tests.
        turn: A number that each run increments, such as the number of commits.
    """
    files = sorted({_file_of(item) for item in items})
    first = int(turn * _STEP % 1 * len(files))
    places = {file: (place - first) % len(files) for place, file in enumerate(files)}
    items.sort(key=lambda item: places[_file_of(item)])  # stable: tests of a file stay together, in the order they have


def put_longest_first(items: list[pytest.Item]) -> None:
    """In a parallel run, begin with the files that take longest, so that none of them runs alone at the end.

    They are recognised by a longer timeout and by tests that start processes or take long. Xdist itself begins with the
    files that have most tests, but the longest files have one or two (so `make test` turns that off).

    Args:
        items: Collected tests.
    """
    limits: dict[str, float] = {}
    dear: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for item in items:
        file = _file_of(item)
        marker = item.get_closest_marker("timeout")
        limits[file] = max(limits.get(file, 0), marker.args[0] if marker is not None and marker.args else 0)
        dear[file] += any(item.get_closest_marker(name) is not None for name in ("server", "builds", "slow"))
        tests[file] += 1

    def weight(item: pytest.Item) -> tuple[float, int, int]:
        file = _file_of(item)
        return limits[file], dear[file], tests[file]

    items.sort(key=weight, reverse=True)

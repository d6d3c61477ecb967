"""The page on benchmarks, written by hand for users, has no other figures than the results that programs write."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")


def figures_of(text: str) -> set[str]:
    """Numbers in the rows of tables."""
    return {each for line in text.splitlines() if line.startswith("|") for each in _FIGURE.findall(line)}


def test_the_page_for_users_has_the_figures_of_the_results() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    results = (ROOT / "bench" / "results.md").read_text(encoding="utf-8")
    assert len(figures_of(page)) > 200
    assert figures_of(page) - set(_FIGURE.findall(results)) == set()

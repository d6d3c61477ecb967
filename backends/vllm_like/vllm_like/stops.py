"""Ends a text at the first of several texts in it (`stop`), for engines that do not tell which one has ended it."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple


class StopFinder:
    """Finds the first stop in a text that arrives in parts, and holds back an end that may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def add(self, text: str) -> Tuple[str, Optional[str]]:
        """The text that can be sent after *text* has arrived, and the stop that ends it; None if it goes on."""
        whole = self._held + text
        found = [(place, number) for number, stop in enumerate(self._stops) if (place := whole.find(stop)) >= 0]
        if found:
            place, number = min(found)  # of several at one place, the one that the request names first
            self._held = ""
            return whole[:place], self._stops[number]
        sent = len(whole) - max(overlap(whole, stop) for stop in self._stops)
        self._held = whole[sent:]
        return whole[:sent], None

    def end(self) -> str:
        """The text that was held back, once no more follows."""
        rest, self._held = self._held, ""
        return rest


def overlap(text: str, mark: str) -> int:
    """The length of the longest end of *text* with which *mark* begins, but for the whole mark."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)

"""The last hour in samples: a small ring of figures for the server and for each model, for the plots of the page.

A sample is made every few seconds from counters that exist. A ring of one figure takes 3 KB. It
begins with the first value that is not zero, so a model without requests has those of its memory alone.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

STEP_SECONDS = 5.0
SAMPLES = 720  # how many samples are kept: one hour
_DIGITS = 3
_Figures = Mapping[str, float]


class History:
    """The ring. Figures have names, and belong to a model by its key, or to the server by the key ""."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self._samples = samples
        self._count = 0
        self._times = array("d", [0.0] * samples)
        self._rings: dict[str, dict[str, array[float]]] = {}
        self._last_seen: dict[str, int] = {}
        self.latest: Mapping[str, _Figures] = {}

    def add(self, time: float, figures: Mapping[str, _Figures]) -> None:
        """Add the sample of a time, in seconds since the epoch: figures by their names, by model."""
        place = self._count % self._samples
        self._count += 1
        self._times[place] = time
        self.latest = figures
        for key, values in figures.items():
            self._last_seen[key] = self._count
            rings = self._rings.setdefault(key, {})
            for name, value in values.items():
                if name not in rings and value and not math.isnan(value):
                    rings[name] = array("f", [math.nan] * self._samples)
        for key, rings in list(self._rings.items()):
            if self._last_seen[key] + self._samples < self._count:  # nothing of it is left
                del self._rings[key], self._last_seen[key]
                continue
            now = figures.get(key, {})
            for name, ring in rings.items():
                ring[place] = now.get(name, math.nan)

    def document(self, key: str, after: float = 0.0) -> dict[str, Any]:
        """The samples of a model, or of the server, that are later than *after*: times, and values by figure."""
        first = max(self._count - self._samples, 0)
        places = [number % self._samples for number in range(first, self._count)]
        places = [place for place in places if self._times[place] > after]
        return {
            "step": STEP_SECONDS,
            "time": [round(self._times[place], _DIGITS) for place in places],
            "figures": {
                # orjson writes NaN as null, which the plots draw as a gap.
                name: [round(ring[place], _DIGITS) for place in places]
                for name, ring in self._rings.get(key, {}).items()
            },
        }

"""Samples collected in turns, and their medians and ratios."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

OURS, THEIRS = "naiad", "triton"

_Samples = Sequence[Mapping[str, float]]


@dataclasses.dataclass
class Results:
    """Samples by case and server, in the order of their measurement."""

    samples: dict[str, dict[str, list[Mapping[str, float]]]] = dataclasses.field(default_factory=dict)

    def add(self, case: str, server: str, sample: Mapping[str, float]) -> None:
        """Add a sample and print it, so that a long run shows its progress."""
        self.samples.setdefault(case, {}).setdefault(server, []).append(sample)
        figures = "  ".join(f"{name} {value:,.4g}" for name, value in sample.items())
        print(f"{case:24} {server:8} {figures}", flush=True)

    def median(self, case: str, server: str, metric: str) -> float | None:
        """The median of a metric; None if it was not measured."""
        values = [sample[metric] for sample in self.samples.get(case, {}).get(server, []) if metric in sample]
        return statistics.median(values) if values else None

    def ratio(self, case: str, metric: str, one: str = OURS, other: str = THEIRS) -> float | None:
        """The median of *one* server's value divided by the *other*'s, turn by turn; None if no turn measured both.

        The ratio is computed for each turn because a machine whose speed changes affects both servers of a turn alike.
        """
        samples = self.samples.get(case, {})
        return _median_ratio(samples.get(one, []), samples.get(other, []), metric)

    def ratio_of_cases(self, case: str, beside: str, metric: str, server: str = OURS) -> float | None:
        """The median of a server's value in *case* divided by its value in *beside*, turn by turn, as in `ratio`."""
        one, other = (self.samples.get(name, {}).get(server, []) for name in (case, beside))
        return _median_ratio(one, other, metric)


def _median_ratio(one: _Samples, other: _Samples, metric: str) -> float | None:
    turns = zip(one, other, strict=False)
    ratios = [mine[metric] / beside[metric] for mine, beside in turns if metric in mine and beside.get(metric)]
    return statistics.median(ratios) if ratios else None

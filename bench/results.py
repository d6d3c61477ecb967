"""Samples collected in turns, and their medians and ratios."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping

OURS, THEIRS = "naiad", "triton"


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
        turns = zip(samples.get(one, []), samples.get(other, []), strict=False)
        ratios = [own[metric] / of_other[metric] for own, of_other in turns if metric in own and of_other.get(metric)]
        return statistics.median(ratios) if ratios else None

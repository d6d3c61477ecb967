"""Repeats turns in which the hypervisor gave processor time to other virtual machines (steal time)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psutil

from bench.results import Results

STOLEN = "stolen"
# Share of the time of all processors. On an undisturbed machine it is below 0.01; from 0.05 on, the ratios of
# successive turns vary between 1 and 2.
LIMIT = 0.02

Turn = Mapping[str, Mapping[str, float]]


def take_turns(results: Results, case: str, rounds: int, turn: Callable[[], Turn]) -> None:
    """Add *rounds* turns of a case.

    A turn with more steal time than the limit is repeated. At most *rounds* turns are repeated: on a machine that is
    always disturbed, further turns count as they are. The measured values do not influence this decision.

    Args:
        results: Collects the samples, each with the steal time of its turn as a share of the processors' time.
        case: Name of the measured case.
        rounds: Number of turns that count.
        turn: Measures all servers, one after the other; returns the samples by server.
    """
    spare = rounds
    while rounds:
        before = psutil.cpu_times()
        samples = turn()
        stolen = stolen_share(before, psutil.cpu_times())
        if stolen > LIMIT and spare:
            spare -= 1
            print(f"{case:24} repeated: {stolen:.0%} of the processors' time went to other machines", flush=True)
            continue
        rounds -= 1
        for server, sample in samples.items():
            results.add(case, server, {**sample, STOLEN: stolen})


def stolen_share(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    """The share of all processors' time that went to other machines between two readings of `psutil.cpu_times()`."""
    spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields if "guest" not in name}
    return max(0.0, spent.get("steal", 0.0)) / max(sum(spent.values()), 1e-9)

"""Taking turns again that other machines disturbed: what a hypervisor gave to others was nobody's to use here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psutil

from bench.results import Results

STOLEN = "stolen"
# Of all processors' time. On a machine left alone it is below a hundredth; from a twentieth on, turns beside each other
# give ratios of 1 and of 2.
LIMIT = 0.02

Turn = Mapping[str, Mapping[str, float]]


def take_turns(results: Results, case: str, rounds: int, turn: Callable[[], Turn]) -> None:
    """Add *rounds* turns of a case.

    A turn of which more than the limit was stolen is taken again, as many in all as there are rounds: on a machine that
    has no peace at all, its turns count as they are. What was measured has no say in it.

    Args:
        results: Where samples go, each with the share of the processors' time that was stolen in its turn.
        case: What is measured.
        rounds: How many turns count.
        turn: Measures all servers, one after the other; samples by server.
    """
    spare = rounds
    while rounds:
        before = psutil.cpu_times()
        samples = turn()
        stolen = stolen_share(before, psutil.cpu_times())
        if stolen > LIMIT and spare:
            spare -= 1
            print(f"{case:24} again: {stolen:.0%} of the processors' time went to other machines", flush=True)
            continue
        rounds -= 1
        for server, sample in samples.items():
            results.add(case, server, {**sample, STOLEN: stolen})


def stolen_share(before: tuple[float, ...], after: tuple[float, ...]) -> float:
    """Which part of all processors' time between two readings of `psutil.cpu_times()` went to other machines."""
    spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields if "guest" not in name}
    return max(0.0, spent.get("steal", 0.0)) / max(sum(spent.values()), 1e-9)

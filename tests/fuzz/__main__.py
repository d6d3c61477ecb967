"""`PYTHONPATH=tests python -m fuzz --inputs N`: spoil N inputs of every kind; ends with 1 at the first that does harm."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

from fuzz.campaign import Campaign, against_server, prepared
from fuzz.server_target import served


def main() -> int:
    """Run all campaigns and print a table of what was tried, and how it was answered."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=10_000, help="how many, of all kinds together")
    options.add_argument("--server-inputs", type=int, default=0, help="how many more for a real server")
    options.add_argument("--seed", type=int, default=0, help="the same seed makes the same inputs")
    options.add_argument("--only", default="", help="campaigns with this in their name")
    given = options.parse_args()
    logging.getLogger("naiad").propagate = False  # what models are refused for is no news here
    run = _Run(given.seed, given.only)
    print("| what | inputs | seconds | answers |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        with prepared(Path(folder)) as campaigns:
            run.take(campaigns, given.inputs)
        if given.server_inputs:
            with prepared(Path(folder)), served(Path(folder) / "server") as target:
                run.take(against_server(target), given.server_inputs, "a real server, ")
                target.check_well()
    print(f"\n{run.total:,} inputs, {run.failed} campaigns with findings")
    return 1 if run.failed else 0


class _Run:
    """Counts, and prints a row a campaign."""

    def __init__(self, number: int, only: str) -> None:
        self.total = 0
        self.failed = 0
        self._number = number
        self._only = only

    def take(self, campaigns: list[Campaign], inputs: int, where: str = "") -> None:
        """Run campaigns with their shares of *inputs*."""
        for campaign in campaigns:
            if inputs and self._only in campaign.name:
                self._one(campaign, int(inputs * campaign.share), where)

    def _one(self, campaign: Campaign, wanted: int, where: str) -> None:
        campaign.target.answers.clear()
        started = time.monotonic()
        try:
            count = campaign.run(wanted, self._number)
        except Exception as problem:
            self.failed += 1
            notes = "\n".join(getattr(problem, "__notes__", []))
            print(f"FAILED {campaign.name}: {problem!r}\n{notes}", flush=True)
            return
        self.total += count
        answers = ", ".join(f"{name}: {number:,}" for name, number in sorted(campaign.target.answers.items(), key=str))
        seconds = time.monotonic() - started
        print(f"| {where}{campaign.name} | {count:,} | {seconds:.0f} | {answers} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

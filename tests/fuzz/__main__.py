"""`PYTHONPATH=tests python -m fuzz --inputs N`: try N mutated inputs; the exit code is 1 if one of them causes harm."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

from fuzz.campaign import Campaign, prepared, server_campaigns
from fuzz.server_target import running_server


def main() -> int:
    """Run all campaigns, and print a table of their inputs and outcomes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=10_000, help="number of inputs, over all campaigns")
    options.add_argument("--server-inputs", type=int, default=0, help="number of further inputs, for a real server")
    options.add_argument("--seed", type=int, default=0, help="seed of the random inputs")
    options.add_argument("--only", default="", help="run only campaigns whose names contain this text")
    given = options.parse_args()
    logging.getLogger("naiad").propagate = False  # errors of invalid models are expected
    runner = _Runner(given.seed, given.only)
    print("| campaign | inputs | seconds | outcomes |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        with prepared(Path(folder)) as campaigns:
            runner.run(campaigns, given.inputs)
        if given.server_inputs:
            with prepared(Path(folder)), running_server(Path(folder) / "server") as target:
                runner.run(server_campaigns(target), given.server_inputs, "a real server, ")
                target.check_health()
    print(f"\n{runner.total:,} inputs, {runner.failed} campaigns with findings")
    return 1 if runner.failed else 0


class _Runner:
    """Runs campaigns, and prints a row for each."""

    def __init__(self, seed: int, only: str) -> None:
        self.total = 0
        self.failed = 0
        self._seed = seed
        self._only = only

    def run(self, campaigns: list[Campaign], inputs: int, where: str = "") -> None:
        """Run campaigns with their shares of *inputs*."""
        for campaign in campaigns:
            if inputs and self._only in campaign.name:
                self._run_one(campaign, int(inputs * campaign.share), where)

    def _run_one(self, campaign: Campaign, wanted: int, where: str) -> None:
        campaign.target.outcomes.clear()
        started = time.monotonic()
        try:
            count = campaign.run(wanted, self._seed)
        except Exception as problem:
            self.failed += 1
            notes = "\n".join(getattr(problem, "__notes__", []))
            print(f"FAILED {campaign.name}: {problem!r}\n{notes}", flush=True)
            return
        self.total += count
        outcomes = ", ".join(
            f"{name}: {number:,}" for name, number in sorted(campaign.target.outcomes.items(), key=str)
        )
        seconds = time.monotonic() - started
        print(f"| {where}{campaign.name} | {count:,} | {seconds:.0f} | {outcomes} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

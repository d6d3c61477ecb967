"""`PYTHONPATH=tests python -m fuzz --inputs N`: spoil N inputs of every kind; ends with 1 at the first that does harm."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

from fuzz.campaign import prepared


def main() -> int:
    """Run all campaigns and print a table of what was tried, and how it was answered."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=10_000, help="how many, of all kinds together")
    options.add_argument("--seed", type=int, default=0, help="the same seed makes the same inputs")
    options.add_argument("--only", default="", help="campaigns with this in their name")
    given = options.parse_args()
    logging.getLogger("naiad").propagate = False  # what models are refused for is no news here
    total, failed = 0, 0
    print("| what | inputs | seconds | answers |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, prepared(Path(folder)) as campaigns:
        for campaign in campaigns:
            if given.only not in campaign.name:
                continue
            campaign.target.answers.clear()
            started, wanted = time.monotonic(), int(given.inputs * campaign.share)
            try:
                count = campaign.run(wanted, given.seed)
            except Exception as problem:
                failed += 1
                print(
                    f"FAILED {campaign.name}: {problem!r}\n" + "\n".join(getattr(problem, "__notes__", [])), flush=True
                )
                continue
            total += count
            answers = ", ".join(
                f"{name}: {number:,}" for name, number in sorted(campaign.target.answers.items(), key=str)
            )
            print(f"| {campaign.name} | {count:,} | {time.monotonic() - started:.0f} | {answers} |", flush=True)
    print(f"\n{total:,} inputs, {failed} campaigns with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

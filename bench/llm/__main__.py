"""`python -m bench.llm`: measure language models; writes its section of bench/results.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.llm import report
from bench.llm.contestants import Servers
from bench.llm.environment import ROOT, environment
from bench.llm.session import TOKENS, Session
from bench.ours import install as install_ours
from bench.reference import install
from bench.report import PAGE

FOLDER = ROOT / ".bench"
ROUNDS = 7


def main() -> int:
    options = _options()
    reference = install(FOLDER / "reference")
    ours = install_ours(FOLDER, reference)
    made = environment(FOLDER, ours.with_name("python"))
    with tempfile.TemporaryDirectory(prefix="naiad-bench-", ignore_cleanup_errors=True) as work:
        servers = Servers(ours, reference, made, Path(work))
        results = Session(servers, options.only or list(TOKENS), options.rounds, not options.without_triton).run()
    section = report.section(results, f"`python -m bench.llm{''.join(f' {each}' for each in sys.argv[1:])}`, "
                                      f"{options.rounds} rounds by turns")  # fmt: skip
    if options.only or options.without_triton:
        print(section)
    else:
        report.write(PAGE, section)
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.llm", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns for each contestant")
    parser.add_argument("--only", action="append", choices=TOKENS, help="this model alone; prints, writes nothing")
    parser.add_argument("--without-triton", action="store_true", help="leave the reference out; prints, writes nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Mutation testing: small faults are put into the code one at a time, and its unit tests should fail for each.

`make mutation` runs all areas; `make mutation ARGUMENTS="memory protocol --count 50"` some of them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from mutation.areas import AREAS, ROOT, files_as_area
from mutation.equivalent import EQUIVALENT
from mutation.operators import Source, sample
from mutation.runner import MutationError, judge, killed_share, table

MARKS = "not (slow or server or builds or endurance)"
WANTED = 0.9


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge samples of mutants, and print tables; the exit code is 1 if an area's tests kill too few."""
    given = _parser().parse_args(arguments)
    os.chdir(ROOT if not given.files else ".")
    print(f"seed {given.seed}", flush=True)
    failed = []
    areas = {"the files": None} if given.files else {name: AREAS[name] for name in given.areas or AREAS}
    for name, area in areas.items():
        sources = files_as_area(given.files) if area is None else area.sources()
        tests = given.tests if area is None else area.tests
        share = _judge_area(name, sources, tests, given)
        if share < given.wanted:
            failed.append(f"{name} ({share:.0%})")
    if failed:
        print(f"fewer than {given.wanted:.0%} of the mutants were killed in: {', '.join(failed)}")
    return 1 if failed else 0


def _judge_area(name: str, sources: list[Source], tests: Sequence[str], given: argparse.Namespace) -> float:
    started = time.monotonic()
    every = [mutant for source in sources for mutant in source.mutants()]
    judged = [mutant for mutant in every if mutant.identity not in EQUIVALENT]
    chosen = sample(judged, given.count, given.seed)
    try:
        outcomes = judge(sources, chosen, tests, MARKS, given.jobs, given.grace)
    except MutationError as error:
        print(f"cannot judge the tests of {name}: {error}")
        return 0
    seconds = time.monotonic() - started
    share = killed_share(outcomes)
    print(f"\n## {name}: {share:.0%} of {len(chosen)} mutants killed, of {len(every)} possible, in {seconds:.0f} s\n")
    print(table(outcomes), flush=True)
    return share


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"all by default: {', '.join(AREAS)}")
    parser.add_argument("--files", nargs="+", default=[], metavar="FILE", help="mutate these files instead of areas")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="tests of --files")
    parser.add_argument("--count", type=int, default=80, help="mutants of each area; 0 for all (default: %(default)s)")
    today = dt.datetime.now(dt.timezone.utc).date()
    parser.add_argument(
        "--seed", type=int, default=today.toordinal(), help="chooses the mutants (default: another one each day)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument(
        "--grace", type=int, default=5, help="seconds of a mutant beyond its tests' time (default: %(default)s)"
    )
    parser.add_argument("--wanted", type=float, default=WANTED, help="least share to kill (default: %(default)s)")
    return parser


def _isolate() -> None:
    """Go on in a namespace of process ids where that is possible: mutants send signals to wrong processes."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    command = ["unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print("no namespace of process ids here: a mutant may send a signal to other processes of yours", flush=True)
    else:
        os.execvp(command[0], [*command, sys.executable, "-m", "mutation", *sys.argv[1:]])


if __name__ == "__main__":
    if os.getpid() != 1:
        _isolate()
    sys.exit(main())

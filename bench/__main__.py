"""`python -m bench`: compare naiad with the real Triton; bench/results.md shows the results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import cases, report
from bench.environment import packed_environment
from bench.ours import install as install_ours
from bench.ours import python_of
from bench.reference import Reference, install
from bench.results import OURS, THEIRS, Results
from bench.servers import Program
from bench.session import Session

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".bench"
ROUNDS, PROMISED_ROUNDS, WINDOW = 3, 7, 0.8
QUICK_ROUNDS, QUICK_WINDOW = 1, 0.3


def main() -> int:
    options = _options()
    names = [name for name in cases.NAMES if not options.only or any(part in name for part in options.only)]
    if not names:
        print(f"no case matches {' or '.join(options.only)}; the cases are: {', '.join(cases.NAMES)}")
        return 2
    reference = install(FOLDER / "reference")
    wants_environment = any(name.startswith("environment") for name in names)
    session = Session(
        reference=reference,
        programs=[program for program in _programs(reference) if program.name in options.servers],
        rounds=QUICK_ROUNDS if options.quick else ROUNDS,
        promised_rounds=QUICK_ROUNDS if options.quick else PROMISED_ROUNDS,
        window=QUICK_WINDOW if options.quick else WINDOW,
    )
    results = session.run(names, packed_environment(FOLDER) if wants_environment else None)
    settings = f"`python -m bench {' '.join(sys.argv[1:])}`".replace(" `", "`")
    settings += f", {session.rounds} rounds by turns ({session.promised_rounds} of loads with a target), "
    settings += f"3 windows of {session.window} s each"
    python = python_of(install_ours(FOLDER, reference))
    return _conclude(results, settings, python, page=report.PAGE if options.write or _is_whole(options) else None)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run one short round, in under two minutes; print only")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="run the cases whose names contain PART"
    )
    parser.add_argument("--write", action="store_true", help="write bench/results.md even after --quick or --only")
    parser.add_argument(
        "--servers", nargs="+", choices=(OURS, THEIRS), default=(OURS, THEIRS), help="measure one server alone"
    )
    return parser.parse_args()


def _programs(reference: Reference) -> list[Program]:
    ours = [str(install_ours(FOLDER, reference))]
    return [
        Program(THEIRS, reference.server_command(), reference.server_environ(packages=True)),
        Program(OURS, ours, {}),
    ]


def _is_whole(options: argparse.Namespace) -> bool:
    return not options.quick and not options.only and len(options.servers) == len((OURS, THEIRS))


def _conclude(results: Results, settings: str, python: str, page: Path | None) -> int:
    if page is not None:
        report.write(page, results, settings, python)
        print(f"written: {page.relative_to(ROOT)}")
    else:
        print(report.render(results, settings, python, prose=""))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.scaling`: requests/s, latency, CPU and memory over the number of processes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench import reference
from bench.ours import install as install_ours
from bench.ours import python_of
from bench.report import PAGE
from bench.results import THEIRS
from bench.scaling import picture, report, session
from bench.scaling.session import CORES, NAMES, Session, counts, name_of
from bench.servers import Program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".bench"
ROUNDS, WINDOW = 5, 2.0
QUICK_ROUNDS, QUICK_WINDOW = 1, 1.0
_FLAG = "--processes"


def main() -> int:
    options = _options()
    names = [name for name in NAMES if not options.only or any(part in name for part in options.only)]
    if not names:
        print(f"no case matches {' or '.join(options.only)}; the cases are: {', '.join(NAMES)}")
        return 2
    installed = _installed_reference()
    ours = install_ours(FOLDER, installed) if installed else Path(sys.executable).with_name("tritonserver")
    programs = [Program(name_of(1), [str(ours)], {})]
    if _has_processes(ours):
        programs = [Program(name_of(count), [str(ours), f"{_FLAG}={count}"], {}) for count in options.processes]
    if installed:
        programs.append(Program(THEIRS, installed.server_command(), installed.server_environ(packages=True)))
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    window = QUICK_WINDOW if options.quick else WINDOW
    results = Session(programs=programs, rounds=rounds, window=window).run(names)
    settings = (
        f"`python -m bench.scaling{''.join(f' {each}' for each in sys.argv[1:])}`, rounds: {rounds} of {window:g} s"
    )
    made = report.section(results, f"{settings}; Python {python_of(ours)}", CORES)
    if options.write or not (options.quick or options.only):
        report.write(PAGE, made, picture.draw(results) if session.ONE_MODEL in results.samples else "")
        print(f"written: {PAGE.relative_to(ROOT)}")
    else:
        print(made)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run one short round; print only")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="run the cases whose names contain PART; print only"
    )
    parser.add_argument("--write", action="store_true", help="write bench/results.md even after --quick or --only")
    parser.add_argument(
        "--processes", nargs="+", type=int, default=counts(CORES), metavar="N", help="the numbers of processes"
    )
    return parser.parse_args()


def _installed_reference() -> reference.Reference | None:
    """The real Triton if it is installed; unlike `make bench`, this comparison also makes sense without it."""
    folder = FOLDER / "reference"
    if not os.environ.get("NAIAD_BENCH_REFERENCE") and not (folder / reference.MARKER).exists():
        print("measured without Triton, which `make bench` installs")
        return None
    return reference.install(folder)


def _has_processes(program: Path) -> bool:
    done = subprocess.run([str(program), "--help"], capture_output=True, text=True, check=True)
    return _FLAG in done.stdout


if __name__ == "__main__":
    sys.exit(main())

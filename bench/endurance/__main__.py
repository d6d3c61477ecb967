"""`python -m bench.endurance`: load naiad for a long time; check that nothing is lost, mixed up or leaked."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.endurance import report, repository, trial
from bench.endurance.clients import Address
from bench.endurance.scenarios import Scenario, Size, scenarios
from bench.results import OURS
from bench.servers import HOST, Program, running

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("results.md")


def main() -> int:
    options = _options()
    environment = _environment(Path(options.python)) if options.python else None
    chosen = [
        scenario
        for scenario in scenarios(environment)
        if not options.only or any(part in scenario.name for part in options.only)
    ]
    if not chosen:
        print(f"no load matches {' or '.join(options.only)}; the loads are:")
        print("\n".join(scenario.name for scenario in scenarios(environment)))
        return 2
    size = Size(seconds=options.seconds)
    trials = []
    for scenario in chosen:
        found = run(scenario, size, options.server)
        print(report.line(found), flush=True)
        trials.append(found)
    if options.write:
        report.write(options.page, trials, size, _command(size, environment), environment)
    return 1 if any(found.account.violation_count for found in trials) else 0


def _command(size: Size, environment: Path | None) -> str:
    """The command that regenerates the page, without paths of this machine."""
    other = f" --python python{environment.name.rpartition('-')[2]}" if environment else ""
    return f"python -m bench.endurance --seconds {size.seconds:g}{other} --write"


def run(scenario: Scenario, size: Size, server: str) -> trial.Trial:
    """Run one load on its own server."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        models = repository.write(scenario.models, work / "models")
        with running(Program(OURS, [server], {}), models, work) as ours:
            address = Address(HOST, ours.http_port, ours.grpc_port, ours.pid)
            found = asyncio.run(trial.run(scenario, address, size))
            log = ours.log
    for line in trial.judge_log(log):
        found.account.wrong(f"logged: {line}")
    return found


def _environment(python: Path) -> Path:
    """A virtual environment of *python* with numpy, created once."""
    folder = ROOT / ".bench" / f"endurance-{_version(python)}"
    if not (folder / "ready").exists():
        print(f"creating an environment for {python} ...", flush=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "numpy"], check=True)
        (folder / "ready").touch()
    return folder


def _version(python: Path) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.endurance", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="duration of each timed load (default: 60)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="run loads whose names contain PART"
    )
    parser.add_argument("--python", metavar="PATH", help="interpreter of another version, for the other Python loads")
    parser.add_argument(
        "--server",
        metavar="PATH",
        default=str(Path(sys.executable).with_name("tritonserver")),
        help="server to start (default: the installed one)",
    )
    parser.add_argument("--write", action="store_true", help="write bench/endurance/results.md")
    parser.add_argument("--page", type=Path, default=PAGE, help="path of the page to write")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.profile`: where the host spends the time of a request, function by function.

Runs naiad under cProfile with a load from the real perf_analyzer. A profiler overstates the time of small functions,
so use its figures for ranking only. bench/results.md has the real CPU time per request.
"""

from __future__ import annotations

import argparse
import pstats
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench import cases, repository
from bench.__main__ import FOLDER
from bench.perf import Load, measure
from bench.reference import install
from bench.results import OURS
from bench.servers import Program, running

# SIGTERM ends the server in the usual way, so that this code can write the profile.
PROFILED = """\
import cProfile, sys
from naiad.cli.main import main_tritonserver
profile = cProfile.Profile()
try:
    profile.runcall(main_tritonserver, sys.argv[2:])
finally:
    profile.dump_stats(sys.argv[1])
"""
# Waiting for events and starting up are not part of a request.
LEFT_OUT = ("asyncio/runners.py", "importlib", "<frozen", "marshal", "posix.", "_posixsubprocess")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("case", nargs="?", default="add_sub-http-1", choices=cases.LOADS, help="the load")
    parser.add_argument("--lines", type=int, default=40, help="how many functions to print")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        requests, entries = _profile(cases.LOADS[options.case], Path(folder))
    print(f"{options.case}: {requests} requests; microseconds per request in each function itself, largest first")
    for name, microseconds in Counter(entries).most_common(options.lines):
        print(f"{microseconds:8.1f}  {name}")
    print(f"{sum(entries.values()):8.1f}  in total")
    return 0


def _profile(load: Load, folder: Path) -> tuple[int, dict[str, float]]:
    output = folder / "profile"
    program = Program(OURS, [sys.executable, "-c", PROFILED, str(output)], {})
    repository.write_load_models(folder / "models")
    reference = install(FOLDER / "reference")
    with running(program, folder / "models", folder) as server:
        measure(reference, server, load, window=1.0)
        requests = server.inference_count(load.model)
    return requests, per_request(pstats.Stats(str(output)), requests)


def per_request(stats: pstats.Stats, requests: int) -> dict[str, float]:
    """Microseconds per request for each function that processes requests."""
    entries: dict[str, float] = {}
    for (file, line, name), (_, calls, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        where = name if file == "~" else f"{file.rsplit('/site-packages/')[-1].rsplit('/platform/')[-1]}:{line} {name}"
        # A function that ran for fewer than half of the requests belongs to the start, not to requests.
        if calls >= requests / 2 and not any(part in where for part in LEFT_OUT):
            entries[where] = own / requests * 1e6
    return entries


if __name__ == "__main__":
    sys.exit(main())

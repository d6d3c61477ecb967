"""`python -m simulation`, with PYTHONPATH=platform:stubs:tests: histories of many seeds, or one of them in words."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import defaultdict

from simulation.histories import make, make_processes
from simulation.reduce import reduce
from simulation.run import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("count", type=int, nargs="?", default=1, help="how many; one is shown in words")
    parser.add_argument("--reduce", action="store_true", help="show the shortest history that fails in the same way")
    parser.add_argument("--seconds", type=float, default=1e9, help="of CPU, after which no further history begins")
    parser.add_argument("--stop", action="store_true", help="end with the first that fails")
    parser.add_argument("--processes", action="store_true", help="of servers with several processes")
    options = parser.parse_args()
    made = make_processes if options.processes else make
    warnings.simplefilter("ignore")
    if options.count == 1:
        history = made(options.first)
        if options.reduce:
            history = reduce(history)
        result = run(history)
        for at, *words in result.events:
            print(f"{at / 1e9:12.6f}", *words)
        print(history)
        print(*result.failures, sep="\n")
        return bool(result.failures)
    found: dict[str, list[int]] = defaultdict(list)
    began, done, events = time.process_time(), 0, 0
    for seed in range(options.first, options.first + options.count):
        result = run(made(seed))
        done, events = done + 1, events + len(result.events)
        for kind in result.kinds():
            found[kind].append(seed)
        if time.process_time() - began > options.seconds or (options.stop and result.failures):
            break
    seconds = time.process_time() - began
    print(f"{done} histories of {events / done:.0f} events, {done / seconds:.0f} a second of CPU")
    for kind, seeds in sorted(found.items(), key=lambda each: -len(each[1])):
        print(f"{len(seeds):6} {kind}; seeds {seeds[:8]}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

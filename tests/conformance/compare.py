"""Send every case to both servers and print the differences.

    python tests/conformance/compare.py DIRECTORY_OF_THE_REFERENCE [--all]

A response that a departure expects counts as equal; `--all` prints these differences too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest's `pythonpath` does

from conformance import departures
from conformance.grpc_cases import CASES as GRPC_CASES
from conformance.judge import judge_grpc, judge_http
from conformance.running import HTTP_CASES, answers, serving


def main() -> int:
    reference = Path(sys.argv[1]) / "bin" / "tritonserver"
    if "--all" in sys.argv:
        departures.HTTP.clear()
        departures.GRPC.clear()
    with tempfile.TemporaryDirectory() as one, serving(Path(one), reference) as (server, repository):
        theirs = answers(server, repository)
    with tempfile.TemporaryDirectory() as other, serving(Path(other)) as (server, repository):
        ours = answers(server, repository)
    findings = {
        f"HTTP: {case.name}": judge_http(case, theirs["http"][case.name], ours["http"][case.name])
        for case in HTTP_CASES
    } | {
        f"gRPC: {case.name}": judge_grpc(case, theirs["grpc"][case.name], ours["grpc"][case.name])
        for case in GRPC_CASES
    }
    different = {name: text for name, text in findings.items() if text}
    for name, text in different.items():
        print(f"{name}\n {text}\n")
    print(f"{len(different)} of {len(findings)} answers differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

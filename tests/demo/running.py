"""Runs a demo as `make` does."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 280  # seconds; `make demo` promises five minutes
_END_SECONDS = 60  # a busy machine takes its time to end a cluster, too


def run_demo(folder, program, limit=LIMIT):
    """Exit code and output; ends by SIGTERM what takes too long, so that its server ends with it."""
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, ROOT / "examples/demo" / program], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            code = process.wait(limit)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(_END_SECONDS)
    return code, output.read_text(encoding="utf-8")

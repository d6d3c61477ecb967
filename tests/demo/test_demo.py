"""`make demo` as a user runs it, from the environment to the verdict."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 280  # seconds; `make demo` promises five minutes


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 15)
def test_the_demo_answers_rightly_under_two_pythons_over_both_protocols(tmp_path):
    code, said = run_demo(tmp_path)
    assert code == 0, said
    assert "Every answer is right" in said
    assert said.count("Asked over") == 2
    for model in ("add_sub", "add_sub_packed", "sentiment", "topic"):
        assert len(re.findall(rf"^ ?{model} .*\d+\.\d+\.\d+ +\d+\.\d", said, re.MULTILINE)) == 2, said
    assert said.count("difference -9 -18 -27 -36") == 4
    assert len(re.findall(r"waiter was rude\. +negative \d\d%  positive \d+%", said)) == 2, said
    assert len(re.findall(r"central bank .* +finance \d\d%", said)) == 2, said
    packed = re.search(r"Python (\S+), packed in", said)
    assert packed is not None, said
    assert re.search(rf"^ ?add_sub_packed .* {re.escape(packed[1])} ", said, re.MULTILINE), said


def run_demo(folder):
    """Exit code and output; ends by SIGTERM what takes too long, so that its server ends with it."""
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, ROOT / "examples/demo/demo.py"], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            code = process.wait(LIMIT)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(10)
    return code, output.read_text(encoding="utf-8")

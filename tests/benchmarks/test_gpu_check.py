"""`make gpu-check` on a machine without a GPU: every row that needs no framework, against the stand-in for the driver."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.system_packages import needs

from bench.gpu.__main__ import has_driver

ROOT = Path(__file__).parents[2]


@pytest.mark.endurance
@pytest.mark.timeout(320)
@pytest.mark.skipif(has_driver(), reason="this machine has a GPU: run make gpu-check")
@needs("cc")
def test_all_rows_of_the_check_are_right_with_the_stand_in(tmp_path):
    command = [sys.executable, "-m", "bench.gpu", "--python", sys.executable, "--json", tmp_path / "rows.json"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "no NVIDIA driver with a device here: these rows were tried against the stand-in" in done.stdout
    rows = {(row["section"], row["name"]): row for row in json.loads((tmp_path / "rows.json").read_text())}
    assert rows["end", "device memory in use, MiB: before, after"]["detail"] == {"left": [], "nothing is left": True}
    assert rows["arrays", "eight calls by async_exec"]["detail"] == {"right": [True] * 8}

"""The example prints what its README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "in_process"


@pytest.mark.server
def test_the_example_prints_what_its_readme_shows(tmp_path):
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    command, output = (text for _, text in re.findall(r"^```(\w+)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL))
    assert command == "python examples/in_process/ask.py\n"

    done = subprocess.run(
        [sys.executable, FOLDER / "ask.py"],
        env={**os.environ, "NAIAD_STORE": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert (done.returncode, done.stderr, done.stdout) == (0, "", output)

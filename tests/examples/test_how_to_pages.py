"""What pages about single models tell to type, on the models of the examples."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "how-to"

pytestmark = pytest.mark.server


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def at_the_root(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_model_runs_once_as_the_page_says():
    command, printed, *_ = blocks("run-a-model-once.md", "")
    name, *arguments = shlex.split(command)

    # All but the line of times.
    assert at_the_root(Path(sys.executable).with_name(name), *arguments).splitlines()[:-1] == printed.splitlines()[:-1]


def test_the_tests_of_a_model_pass_as_the_page_has_them(tmp_path):
    (tmp_path / "test_add_sub.py").write_text(blocks("test-a-model.md", "python")[0], encoding="utf-8")

    assert "python -m pytest -c /dev/null test_add_sub.py" in (PAGES / "test-a-model.md").read_text(encoding="utf-8")
    # As with pytest alone: without the plugins that the settings of this repository name.
    flags = (
        "-q",
        "-c",
        "/dev/null",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:timeout",
        "-p",
        "no:asyncio",
        "-p",
        "no:randomly",
    )
    assert "2 passed" in at_the_root(sys.executable, "-m", "pytest", *flags, str(tmp_path / "test_add_sub.py"))


def test_a_program_serves_a_model_to_itself_as_the_page_says():
    program = blocks("in-process.md", "python")[0]

    assert at_the_root(sys.executable, "-c", program) == "[2. 3. 4. 5.]\n"


def test_all_blocks_of_that_page_are_one_program():
    call = """
(response,) = server.model("add_sub").infer(inputs={"LEFT": left, "RIGHT": right})
print(np.from_dlpack(response.outputs["SUM"]))
server.stop()
"""
    printed = at_the_root(sys.executable, "-c", "\n".join([*blocks("in-process.md", "python"), call])).splitlines()

    assert [printed[0], printed[2]] == ["[2. 3. 4. 5.]"] * 2
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v2/health/ready", printed[1])
    assert len(printed) == 3

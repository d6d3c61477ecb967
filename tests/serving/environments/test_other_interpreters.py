"""Interpreters that are not the usual build of CPython: used where they work, refused with the reason where not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from environments.served import add_model, told
from support.interpreters import make_environment
from support.server import ServerProcess
from support.system_packages import needs, program

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.manager import EnvironmentManager
from naiad.sources.interpreters.prefix import require_numpy
from naiad.sources.interpreters.probe import Interpreter, probe_interpreter


@pytest.fixture(scope="module")
def usual() -> Interpreter:
    return probe_interpreter(Path(sys.executable))


@needs("pypy3")
def test_pypy_is_refused_with_the_reason(tmp_path):
    subprocess.run(["pypy3", "-m", "venv", "--without-pip", tmp_path / "env"], check=True)

    with pytest.raises(ExecutionEnvironmentError) as caught:
        EnvironmentManager(tmp_path / "store").prepare(tmp_path / "env")

    assert "cannot be used: its interpreter is pypy 3." in caught.value.message
    assert "models run under CPython only" in caught.value.message


@pytest.mark.endurance
@needs("python3-dbg")
def test_a_debug_build_serves(tmp_path):
    tag = subprocess.run(
        [str(program("python3-dbg")), "-c", "import sys; print(sys.version_info[1])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    make_environment(tmp_path / "env", (3, int(tag)), str(program("python3-dbg")), "numpy")
    add_model(tmp_path / "models", "m", EXECUTION_ENV_PATH=str(tmp_path / "env"))

    with ServerProcess(tmp_path / "models", f"--env-store={tmp_path}/store", work=tmp_path, timeout=200) as server:
        assert told(server, "m")[:2] == [str(tmp_path / "env"), f"3.{int(tag)}"]


@pytest.mark.parametrize("implementation", ["pypy", "graalpy"])
def test_other_implementations_are_named(implementation, usual):
    with pytest.raises(ExecutionEnvironmentError, match=f"e cannot be used: its interpreter is {implementation} 3"):
        require_numpy(replace(usual, implementation=implementation), where="e", advice="")


@pytest.mark.parametrize(
    ("abi", "is_warned_of"),
    [
        ("cpython-313t-x86_64-linux-gnu", True),
        ("cpython-314td-x86_64-linux-gnu", True),
        ("cpython-313-x86_64-linux-gnu", False),
        ("cpython-311d-x86_64-linux-gnu", False),
    ],
)
def test_a_free_threaded_build_is_used_with_a_warning(abi, is_warned_of, usual, caplog):
    require_numpy(replace(usual, abi=abi), where="e", advice="")

    warned = [record.getMessage() for record in caplog.records if "free-threaded" in record.getMessage()]
    assert len(warned) == is_warned_of

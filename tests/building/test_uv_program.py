"""uv is found, and ends with the process that started it, and with the call that started it; what its output says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from naiad.core.errors import ExecutionEnvironmentError
from naiad_building import uv_program
from naiad_building.uv_program import InstallOptions, find_failed_requirement, find_uv, run_to_end, run_uv

# Starts a compiler, as an installer does, and waits for it. Both have the fifo open as long as they live.
INSTALLER = """
import subprocess, sys
fifo = open(sys.argv[1], "wb", buffering=0)
compiler = "import sys, time; sys.stdout.write('x'); sys.stdout.flush(); time.sleep(600)"
subprocess.run([sys.executable, "-c", compiler], stdout=fifo)
"""
HOST = "import sys; from naiad_building.uv_program import run_to_end; run_to_end(sys.argv[1:])"


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_an_installer_and_its_compilers_end_with_a_killed_host(fifo: Path) -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST, sys.executable, "-c", INSTALLER, str(fifo)])
    with fifo.open("rb", buffering=0) as reader:
        assert reader.read(1) == b"x"

        host.kill()

        assert host.wait() == -signal.SIGKILL
        assert reader.read() == b""  # both have ended


def test_an_interrupted_call_ends_its_installer(fifo: Path) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, sys.executable, "-c", INSTALLER, str(fifo)], stderr=subprocess.PIPE
    )
    with fifo.open("rb", buffering=0) as reader:
        assert reader.read(1) == b"x"

        host.send_signal(signal.SIGINT)

        assert "KeyboardInterrupt" in host.communicate()[1].decode()
        assert reader.read() == b""


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ([sys.executable, "-c", "import sys; print('out'); print('no', file=sys.stderr); sys.exit(3)"], 3, "out\nno\n"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"], 128 + signal.SIGTERM, ""),
        ([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"], 0, "''\n"),
    ],
)
def test_a_command_has_its_own_exit_code_and_output(command: list[str], code: int, output: str) -> None:
    run = run_to_end(command)

    assert (run.returncode, sorted(run.stdout.splitlines())) == (code, sorted(output.splitlines()))


def test_the_installed_uv_is_looked_for_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function initializes global state of `sysconfig`, which a second thread would see half filled."""

    def find_uv_bin() -> str:
        return "/uv" if uv_program._finding_uv.locked() else "/unguarded"

    monkeypatch.setitem(sys.modules, "uv", SimpleNamespace(find_uv_bin=find_uv_bin))

    assert find_uv() == Path("/uv")


def test_uv_is_the_one_installed_with_naiad_else_that_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uv").write_text("")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_uv() == Path(sys.prefix, "bin", "uv")

    monkeypatch.setitem(sys.modules, "uv", None)
    assert find_uv() == tmp_path / "uv"

    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ExecutionEnvironmentError) as caught:
        find_uv()
    assert caught.value.message == (
        "cannot build environments: the program uv is neither beside this Python nor on PATH; install it with `pip "
        "install uv`"
    )


def test_downloads_are_told_with_bytes_and_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv prints the size of a large file when it begins, and its name when it has it."""
    program = tmp_path / "uv"
    said = ["Using Python 3.11", "Downloading a (1.0MiB)", "Downloading b (512.0KiB)", "Downloaded b", "Downloaded a"]
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in [*said, "Prepared 2 packages in 3ms"]))
    program.chmod(0o755)
    monkeypatch.setattr(uv_program, "find_uv", lambda: program)
    told: list[str] = []

    lines = run_uv(["pip"], "m", tmp_path / "model.py", tmp_path / "python", InstallOptions(progress=told.append))

    assert lines == [*said, "Prepared 2 packages in 3ms"]
    assert [re.sub(r", [\d.]+ [kMG]?B/s$", ", RATE", line) for line in told] == [
        "downloading a, 0 B of 1.05 MB",
        "downloading b, 0 B of 1.57 MB",
        "downloaded b, 524 kB of 1.57 MB, RATE",
        "downloaded a, 1.57 MB of 1.57 MB, RATE",
        "Prepared 2 packages in 3ms",
    ]


@pytest.mark.parametrize(
    ("said", "package"),
    [
        ("Because there are no versions of adder and you require adder, your requirements are", "adder"),
        ("Because there is no version of numpy==99 and you require numpy==99, your requirements are", "numpy==99"),
        ("Because nope was not found in the package registry and you\nrequire nope>=2, your requirements", "nope>=2"),
        ("error: Failed to build `broken-one==1`", "broken-one==1"),
        ("error: Failed to download `a==1`", "a==1"),
        ("error: Hash mismatch for `b==2`", "b==2"),
        ("error: No such file", None),
    ],
)
def test_the_package_that_failed_is_found_in_the_output(said: str, package: str | None) -> None:
    assert find_failed_requirement(said.splitlines()) == package


def test_the_error_of_uv_is_shown_whole_and_what_comes_before_it_is_not() -> None:
    causes = [f"  cause {number}" for number in range(20)]
    lines = ["warning: old", "Using Python 3.11", "error: No solution found when resolving dependencies", *causes]

    assert uv_program._reason(lines) == lines[2:]
    assert uv_program._reason(["one", "two"]) == ["one", "two"]

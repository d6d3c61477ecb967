"""The commands in this process: a Python with them takes half a second to start."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from naiad.cli.main import main, main_tritonserver

_PROGRAMS = {"naiad": main, "tritonserver": main_tritonserver}


class Ended(NamedTuple):
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


class Run(Protocol):
    """Runs a command with more variables of the environment."""

    def __call__(self, program: str, *arguments: str | Path, **environ: str) -> Ended: ...


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `naiad` or `tritonserver`; its store is in a folder of the test."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("NAIAD_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(program: str, *arguments: str | Path, **environ: str) -> Ended:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            code = _PROGRAMS[program]([str(each) for each in arguments])
        return Ended(code, *capsys.readouterr())

    return call


@pytest.fixture
def completions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """What completes the last of some words behind `naiad`, as lines of kind and text."""

    def call(words: str) -> set[str]:
        with monkeypatch.context() as patch:
            patch.setenv("_NAIAD_COMPLETE", "bash_complete")
            patch.setenv("COMP_WORDS", f"naiad {words}")
            patch.setenv("COMP_CWORD", str(len(f"naiad {words}".split(" ")) - 1))
            with pytest.raises(SystemExit):
                main([])
        return set(capsys.readouterr().out.splitlines())

    return call

"""Running a small script of ours in a foreign interpreter and reading its one line of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naiad.errors import ExecutionEnvironmentError


def run_script(
    python: Path,
    script: Path,
    *,
    mark: str,
    options: Sequence[str] = ("-I", "-B"),
    arguments: Sequence[str] = (),
    library_path: Path | None = None,
    time_limit: float,
) -> dict[str, Any]:
    """Start an interpreter with a script of ours and return what it prints after its mark.

    Args:
        python: The interpreter.
        script: Path of the script's source, which the interpreter need not be able to read.
        mark: What the line with the answer begins with; a `sitecustomize` may print lines of its own.
        options: For the interpreter. `-I`: neither PYTHON* variables nor the user's site nor the current folder.
        arguments: For the script.
        library_path: Folder for LD_LIBRARY_PATH, for an interpreter that does not find its own libpython.
        time_limit: Seconds it may take.

    Raises:
        ExecutionEnvironmentError: If it does not start, hangs or answers nonsense; ends with its last words.
    """
    text = script.read_text(encoding="utf-8")
    run = run_clean([str(python), *options, "-c", text, *arguments], library_path=library_path, time_limit=time_limit)
    for line in run.stdout.splitlines():
        if line.startswith(mark):
            try:
                answer = json.loads(line[len(mark) :])
            except ValueError as error:
                raise ExecutionEnvironmentError(f"{python} does not work: {error} in its answer") from error
            if isinstance(answer, dict):
                return answer
    raise ExecutionEnvironmentError(f"{python} does not work: {describe_failure(run)}")


def run_clean(
    argv: list[str], *, library_path: Path | None = None, time_limit: float
) -> subprocess.CompletedProcess[str]:
    """Run a command of an environment with its own folder first on PATH and next to no other variable.

    Raises:
        ExecutionEnvironmentError: If it does not start or takes too long.
    """
    environ = {"PATH": f"{Path(argv[0]).parent}:/usr/bin:/bin", "LANG": "C.UTF-8"}
    # Who only says which numpy there is needs no threads for it, and they would wait for work without sleep.
    environ["OPENBLAS_NUM_THREADS"] = "1"
    if library_path is not None:
        environ["LD_LIBRARY_PATH"] = str(library_path)
    try:
        return subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ExecutionEnvironmentError(f"{argv[0]} did not finish within {time_limit:g} s of its start") from error
    except OSError as error:
        raise ExecutionEnvironmentError(f"{argv[0]} cannot be started: {error.strerror or error}") from error


def describe_failure(run: subprocess.CompletedProcess[str]) -> str:
    """How a command ended, with its last lines of stderr."""
    lines = [line for line in run.stderr.strip().splitlines() if line.strip()][-6:]
    how = f"killed by signal {-run.returncode}" if run.returncode < 0 else f"exit status {run.returncode}"
    return f"{how}: " + " | ".join(lines) if lines else f"{how} without a word"

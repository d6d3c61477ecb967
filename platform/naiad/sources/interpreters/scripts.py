"""Running a small script in a foreign interpreter, and reading its one line of JSON output."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.core.child_processes import ended_with_group, read_output
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.foreign_json import read_json
from naiad.sources.interpreters.executables import explain_not_executable


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
    """Run a script in an interpreter and return the JSON object that it prints after *mark*.

    Args:
        script: Source of the script. It is passed with `-c`, so the interpreter's user need not have access to it.
        mark: Start of the output line; a `sitecustomize` may print other lines.
        options: Options of the interpreter. `-I` excludes PYTHON* variables, the user's site and the current folder.

    Raises:
        ExecutionEnvironmentError: If it does not start, hangs, or prints invalid output; contains its last lines.
    """
    text = script.read_text(encoding="utf-8")
    run = run_clean([str(python), *options, "-c", text, *arguments], library_path=library_path, time_limit=time_limit)
    for line in run.stdout.splitlines():
        if line.startswith(mark):
            try:
                value = read_json(line[len(mark) :])
            except ValueError as error:
                raise ExecutionEnvironmentError(f"{python} does not work: {error} in its output") from error
            if isinstance(value, dict):
                return value
    raise ExecutionEnvironmentError(f"{python} does not work: {describe_failure(run)}")


def run_clean(
    argv: list[str],
    *,
    library_path: Path | None = None,
    time_limit: float,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command with few variables, and *variables* beside or in place of them; its folder is first on PATH."""
    environ = {"PATH": f"{Path(argv[0]).parent}:/usr/bin:/bin", "LANG": "C.UTF-8"}
    # Importing numpy starts OpenBLAS's threads, which spin while idle; a probe needs none.
    environ["OPENBLAS_NUM_THREADS"] = "1"
    if library_path is not None:
        environ["LD_LIBRARY_PATH"] = str(library_path)
    environ.update(variables or {})
    try:
        process = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A separate process group, because processes that the command starts must end with it, too.
            start_new_session=True,
        )
    except OSError as error:
        # The missing file need not be the command: without /dev/null, stdin cannot be opened.
        other = "" if error.filename in {None, argv[0]} else f": {error.filename}"
        why = explain_not_executable(Path(argv[0])) if error.errno == errno.EACCES and not other else ""
        reason = why or error.strerror or str(error)
        raise ExecutionEnvironmentError(f"{argv[0]} cannot be started: {reason}{other}") from error
    try:
        with ended_with_group(process):
            out, errors = read_output(process, time_limit=time_limit)
    except subprocess.TimeoutExpired as error:
        raise ExecutionEnvironmentError(
            f"{argv[0]} did not finish within {time_limit:g} s of its start; start it by hand to see what it waits for"
        ) from error
    return subprocess.CompletedProcess(argv, process.returncode, out, errors)


def describe_failure(run: subprocess.CompletedProcess[str]) -> str:
    """Exit status or signal of a command, with its last lines of stderr."""
    lines = [line for line in run.stderr.strip().splitlines() if line.strip()][-6:]
    how = f"killed by signal {-run.returncode}" if run.returncode < 0 else f"exit status {run.returncode}"
    return f"{how}: " + " | ".join(lines) if lines else f"{how} with no output"

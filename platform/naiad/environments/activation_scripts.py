"""Runs the activation scripts of an environment in one shell, as conda does, and reads the variables after them.

The shell reports on a descriptor that scripts do not have. What these print goes elsewhere, with a NUL after each.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from naiad.core.blocking import on_cancel
from naiad.core.child_processes import end_kept, read_output, start_kept

SCRIPTS_FOLDER = "etc/conda/activate.d"
TIME_LIMIT = 60.0  # seconds that all scripts of an environment may take together
_SHOWN_LINES = 6
_KEPT_CHARACTERS = 4096
_SYSTEM_PATH = os.pathsep.join(("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))


def activation_scripts(prefix: Path) -> list[Path]:
    """The scripts that activating an environment runs, in their order."""
    return sorted_files(prefix / SCRIPTS_FOLDER, ".sh")


def sorted_files(folder: Path, suffix: str) -> list[Path]:
    """The files in a folder whose names end in *suffix*, in order; none if it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(Path(entry.path) for entry in found if entry.name.endswith(suffix) and entry.is_file())
    except OSError:
        return []


def run_scripts(scripts: Sequence[Path], variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Run scripts in order in one shell, and the rest in another one after a script that ends the shell.

    Returns:
        The variables after the last script that did not end its shell; and what went wrong, as sentences.
    """
    # conda-forge's scripts are written for bash, and most also run in a POSIX shell.
    shells = (shutil.which(name, path=_SYSTEM_PATH) or shutil.which(name) for name in ("bash", "sh"))
    shell = next(filter(None, shells), None)
    if shell is None:
        problem = (
            f"the scripts in {SCRIPTS_FOLDER} were not run: this machine has no bash and no sh; install one of them"
        )
        return dict(variables), (problem,)
    found, problems, waiting = dict(variables), [], list(scripts)
    deadline = time.monotonic() + TIME_LIMIT
    while waiting:
        run = _run_shell(shell, waiting, found, deadline - time.monotonic())
        for script, output, (status, *entries) in zip(waiting, run.outputs, run.reports, strict=False):
            found = dict(entry.split("=", 1) for entry in entries)
            # A script whose last command is a test (`[ -n "$X" ] && ...`) returns 1 though nothing has failed.
            if int(status) > 1 or (int(status) == 1 and _last_lines(output)):
                problems.append(_failure(script, f"exit status {status}", output))
        waiting = waiting[len(run.reports) :]
        if waiting and run.is_in_time:
            ended = f"it ended the shell with status {run.status}"
            problems.append(_failure(waiting.pop(0), ended, run.outputs[-1]))
        elif waiting:
            late = f"it did not end within {TIME_LIMIT:g} s, the limit for all scripts of an environment"
            problems.append(_failure(waiting[0], late, run.outputs[-1]))
            break
    return found, tuple(problems)


class _Run(NamedTuple):
    # Of each script that has ended and left the shell: its status, and the variables after it.
    reports: Sequence[Sequence[str]]
    outputs: Sequence[str]  # what each of them has printed, and then what the next one has
    status: int  # the shell's own exit code
    is_in_time: bool  # whether it has ended by itself


def _run_shell(shell: str, scripts: Sequence[Path], variables: Mapping[str, str], seconds: float) -> _Run:
    """Run *scripts* in a shell for so many seconds at most; then it is ended with all that they have started."""
    options = ["--noprofile", "--norc"] if Path(shell).name == "bash" else []
    process = start_kept([shell, *options, "-c", _commands(scripts)], variables, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr, on_cancel(process.stdin.close):
        is_in_time = True
        try:
            report, said = read_output(process, time_limit=seconds, errors="surrogateescape")
        except subprocess.TimeoutExpired as late:
            report, said, is_in_time = str(late.output), str(late.stderr), False
        finally:
            end_kept(process)
    return _Run(
        reports=[each.split("\0") for each in report.split("\0\0")[:-1]],
        outputs=said.split("\0"),
        status=process.returncode,
        is_in_time=is_in_time,
    )


def _commands(scripts: Sequence[Path]) -> str:
    """The shell's program: sources each script, and reports its status and the variables after it on descriptor 9.

    A script may leave options such as `set -eu`, which would end the shell in the next one, and may redirect
    its output.
    """
    # By its path: a script may set PATH to anything.
    env = shlex.quote(shutil.which("env", path=_SYSTEM_PATH) or "env")
    lines = ["exec 8>&2 9>&1 1>&2"]
    for path in scripts:
        lines += [
            f"command . {shlex.quote(str(path))} 8>&- 9>&-",
            """command printf '%s\\0' "$?" >&9""",
            "command set +eux",
            f"{{ {env} -0; command printf '\\0'; }} >&9",
            "command printf '\\0' >&8",
        ]
    return "\n".join(lines) + "\n"


def _last_lines(output: str) -> str:
    lines = [line for line in output[-_KEPT_CHARACTERS:].splitlines() if line.strip()]
    return " | ".join(lines[-_SHOWN_LINES:])


def _failure(script: Path, how: str, output: str) -> str:
    said = _last_lines(output)
    reason = f"{how}: {said}" if said else f"{how}, with no output"
    return (
        f"the activation script {SCRIPTS_FOLDER}/{script.name} failed, {reason}; models may lack variables that it "
        "sets: correct the script, or the package that it is from, in the environment"
    )

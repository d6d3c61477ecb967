"""Runs the activation scripts of an environment in one shell, as conda does, and reads the variables after them.

What the scripts print and what the shell reports share a pipe. A mark that no script knows is between them:

    <output of a.sh> MARK <status and variables> MARK <output of b.sh> MARK ... MARK <report of `_process_keeper`>
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from naiad.core.blocking import on_cancel
from naiad.core.child_processes import start_kept

__all__ = ["SCRIPTS_FOLDER", "activation_scripts", "run_scripts"]

SCRIPTS_FOLDER = "etc/conda/activate.d"
TIME_LIMIT = 60.0
"""Seconds that all scripts of an environment may take together."""
_END_LIMIT = 5.0
"""Seconds that ending their processes may take: one that the kernel holds does not end."""
_SHOWN_LINES = 6
_KEPT_BYTES = 4096
_READ_BYTES = 1 << 16
_SYSTEM_PATH = os.pathsep.join(("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))


def activation_scripts(prefix: Path) -> list[Path]:
    """The scripts that activating an environment runs, in their order."""
    try:
        with os.scandir(prefix / SCRIPTS_FOLDER) as found:
            return sorted(Path(entry.path) for entry in found if entry.name.endswith(".sh") and entry.is_file())
    except OSError:
        return []


def run_scripts(scripts: Sequence[Path], variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Run scripts in one shell, each once, and the rest in another one after a script that ends the shell.

    Args:
        scripts: The scripts, in their order.
        variables: The variables that the first one begins with.

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
        parts, is_in_time = _run_shell(shell, waiting, found, deadline)
        status, *left = parts.pop()[4:].split("\0")[:-1] if parts[-1].startswith("end\0") else [""]
        outputs, reports = parts[0::2], parts[1::2][: len(parts) - 1 >> 1]
        for script, output, report in zip(waiting, outputs, reports, strict=False):
            code, *entries = report.split("\0")
            found = dict(entry.split("=", 1) for entry in entries if "=" in entry)
            # A script whose last command is a test (`[ -n "$X" ] && ...`) returns 1 though nothing has failed.
            if int(code) > 1 or (int(code) == 1 and _last_lines(output)):
                problems.append(_failure(script, f"exit status {code}", output))
        if left and is_in_time:
            problems.append(_left_problem(left))
        waiting = waiting[len(reports) :]
        if waiting:
            how = f"it ended the shell with status {status}"
            if not is_in_time:
                how = f"it did not end within {TIME_LIMIT:g} s, the limit for all scripts of an environment"
            problems.append(_failure(waiting.pop(0), how, outputs[len(reports)]))
        if not is_in_time:
            break
    return found, tuple(problems)


def _run_shell(
    shell: str, scripts: Sequence[Path], variables: Mapping[str, str], deadline: float
) -> tuple[list[str], bool]:
    """The parts of what a shell that runs *scripts* prints, between the marks; whether it ended before *deadline*."""
    mark = secrets.token_hex(16)
    options = ["--noprofile", "--norc"] if Path(shell).name == "bash" else []
    command = [shell, *options, "-c", _commands(scripts, mark)]
    process = start_kept(command, variables, mark=mark)
    assert process.stdin is not None
    assert process.stdout is not None
    reader = _PartsReader(process.stdout.fileno(), mark.encode())
    with process.stdout, on_cancel(process.stdin.close):
        try:
            is_in_time = reader.read_until(deadline)
        finally:
            process.stdin.close()  # which ends the shell and all that the scripts have started
            reader.read_until(time.monotonic() + _END_LIMIT)
            process.kill()
            process.wait()
    return [os.fsdecode(part) for part in reader.parts], is_in_time


class _PartsReader:
    """Reads a pipe, and splits it at marks. Of even parts, which are what scripts print, the last few KiB are kept."""

    def __init__(self, descriptor: int, mark: bytes) -> None:
        self.parts = [b""]
        self._descriptor = descriptor
        self._mark = mark

    def read_until(self, deadline: float) -> bool:
        """Read until the pipe is closed; whether that was before *deadline*."""
        while (left := deadline - time.monotonic()) > 0 and select.select([self._descriptor], [], [], left)[0]:
            data = os.read(self._descriptor, _READ_BYTES)
            if not data:
                return True
            self.add(data)
        return False

    def add(self, data: bytes) -> None:
        """Add what was read."""
        begun = len(self.parts) - 1
        self.parts[begun:] = (self.parts[begun] + data).split(self._mark)
        for number in range(begun + begun % 2, len(self.parts), 2):
            self.parts[number] = self.parts[number][-_KEPT_BYTES:]


def _commands(scripts: Sequence[Path], mark: str) -> str:
    """The shell's program: sources each script, and reports its status and the variables after it.

    A script may leave options such as `set -eu`, which would end the shell in the next one, and may redirect
    its output.
    """
    # By its path: a script may set PATH to anything.
    env = shlex.quote(shutil.which("env", path=_SYSTEM_PATH) or "env")
    lines = ["exec 9>&1"]
    for path in scripts:
        lines += [
            f"command . {shlex.quote(str(path))} 9>&-",
            f"command printf '{mark}%s\\0' \"$?\" >&9",
            "command set +eux",
            f"{{ {env} -0; command printf {mark}; }} >&9",
        ]
    return "\n".join(lines) + "\n"


def _last_lines(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-_SHOWN_LINES:])


def _failure(script: Path, how: str, output: str) -> str:
    said = _last_lines(output)
    reason = f"{how}: {said}" if said else f"{how}, with no output"
    return (
        f"the activation script {SCRIPTS_FOLDER}/{script.name} failed, {reason}; models may lack variables that it "
        "sets: correct the script, or the package that it is from, in the environment"
    )


def _left_problem(names: Sequence[str]) -> str:
    return (
        f"the activation scripts left processes running, which were ended: {', '.join(sorted(names))}; scripts are run "
        "once and not for each guest: start these in the model's initialize instead"
    )

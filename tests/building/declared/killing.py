"""Prepares environments in processes that kill themselves at a chosen step: `python killing.py`, and its client.

The program reads one JSON line for each run and writes one, `{"code": int, "output": str}`; a negative code is a signal. The
runs are forks of one process, which has imported everything before: that takes longer than the rest of a run.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__)


class Killer:
    """Runs forks that are killed at a step."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def prepare(self, step: tuple[str, str, int], store: Path, *files: Path) -> bool:
        """Prepare environments, resolving them if needed; whether the process was killed, else it must succeed.

        Args:
            step: A function by its module and name; when, `before` or `after` it; and the number of the call of it.
            store: Folder of the store.
            files: The files that declare them.
        """
        return self._run(step=step, store=str(store), files=list(map(str, files)))

    def prepare_until(self, pattern: str, store: Path, file: Path) -> bool:
        """Prepare an environment until a path in the store matches a pattern."""
        return self._run(pattern=pattern, store=str(store), files=[str(file)])

    def command(self, step: tuple[str, str, int], *arguments: str | Path) -> bool:
        """Run a command of `naiad`."""
        return self._run(step=step, arguments=list(map(str, arguments)))

    def _run(self, **request: object) -> bool:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        done = json.loads(self._process.stdout.readline())
        assert done["code"] in {0, -signal.SIGKILL}, done["output"]
        return bool(done["code"])


@contextlib.contextmanager
def killer(temporary: Path) -> Iterator[Killer]:
    """Start the program, with this process's variables; *temporary* has what killed processes were working on."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        yield Killer(process)


def run(request: dict[str, Any]) -> dict[str, object]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                code = work(request)
            except BaseException:  # the parent reports it
                sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return {"code": os.waitstatus_to_exitcode(status), "output": output.read().decode(errors="replace")}


def work(request: dict[str, Any]) -> int:
    if "pattern" in request:
        threading.Thread(target=kill_when, args=(Path(request["store"]), request["pattern"]), daemon=True).start()
    else:
        kill_at(*request["step"])
    if "arguments" in request:
        return int(main(request["arguments"]))
    policy = StorePolicy(build=EnvBuild.ALLOWED)
    manager = EnvironmentManager(Path(request["store"]), reporter=LogReporter(), policy=policy)
    for file in request["files"]:
        manager.prepare(Path(file), label="m")
    return 0


def kill_when(store: Path, pattern: str) -> None:
    while not any(store.glob(pattern)):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(place: str, when: str, count: int) -> None:
    """Replace a function: its n-th call ends the process, before or after the function."""
    path, _, name = place.rpartition(".")
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError:  # a module that the named one imports, such as `os`
        module = getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
    original, calls = getattr(module, name), 0

    def replaced(*arguments: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls == count and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = original(*arguments, **more)
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(module, name, replaced)


if __name__ == "__main__":
    from naiad.cli.main import main
    from naiad.config.server.env_build import EnvBuild
    from naiad.environments.manager import EnvironmentManager
    from naiad.environments.policy import StorePolicy
    from naiad.environments.progress import LogReporter

    with contextlib.suppress(ImportError):
        import rattler  # noqa: F401 - the forks find it imported
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)

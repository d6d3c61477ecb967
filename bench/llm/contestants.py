"""The measured contestants: the engine in a script, and the two servers over each of their protocols."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.llm import clients
from bench.llm.clients import Ask, Reading
from bench.llm.environment import ROOT, Environment
from bench.reference import Reference
from bench.results import OURS, THEIRS
from bench.servers import Program, Server, running

ENGINE = "engine"
HTTP, GRPC, OPENAI = "HTTP", "gRPC", "OpenAI"
CONTEXT, SLOTS = 1024, 8
_BACKEND = "vllm_like"
_CONFIG = f'backend: "{_BACKEND}"\ninstance_group {{ count: 1 kind: KIND_CPU }}\n'


class Contestant:
    """One server over one protocol."""

    def __init__(self, name: str, server: Server, ask: Ask) -> None:
        self.name = name
        self._server = server
        self._ask = ask

    def measure(self, streams: Sequence[Sequence[str]], tokens: int) -> Reading:
        """Request *tokens* tokens for each prompt of all *streams*; the streams run concurrently."""
        before = self._server.cpu_seconds()
        reading = clients.measure(self._ask, streams, tokens)
        taken = zip(self._server.cpu_seconds(), before, strict=True)
        cpu = [(now - then) / (sum(map(len, streams)) * tokens) for now, then in taken]
        return dataclasses.replace(reading, cpu=cpu)


class DirectEngine(Contestant):
    """The engine in a separate process, controlled over its standard input."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.name = ENGINE
        self._process = process

    def measure(self, streams: Sequence[Sequence[str]], tokens: int) -> Reading:
        """Let the script process the prompts; the script itself measures the times."""
        done = json.loads(self._exchange(json.dumps({"streams": streams, "tokens": tokens})))
        written = sum(map(len, streams)) * tokens
        return Reading(written / done["seconds"], done["first"], (0.0, done["cpu"] / written))

    def _exchange(self, line: str) -> str:
        if self._process.stdin is None or self._process.stdout is None:
            raise SystemExit("the engine has no standard input")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextlib.contextmanager
def engine(environment: Environment, model: Path) -> Iterator[Contestant]:
    """The engine, ready with *model*."""
    script = Path(__file__).with_name("direct.py")
    command = [environment.python, script, model, str(CONTEXT), str(SLOTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise SystemExit("cannot start the engine; its output above shows the cause")
            yield DirectEngine(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()


@dataclasses.dataclass(frozen=True)
class Servers:
    """Starts each of the two servers with one model.

    Attributes:
        ours: The program of naiad.
        work: The temporary folder of the run.
    """

    ours: Path
    reference: Reference
    environment: Environment
    work: Path

    @contextlib.contextmanager
    def naiad(self, name: str, model: Path) -> Iterator[list[Contestant]]:
        """The contestants of naiad, one for each protocol."""
        path = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{self.environment.root}" }} }}\n'
        repository = self._write(OURS, name, model, path)
        port = random.randrange(32000, 32700)
        command = [str(self.ours), f"--openai-port={port}", f"--backend-directory={ROOT / 'backends'}"]
        with running(Program(OURS, command, {}), repository, self.work) as server:
            yield [*_asked(OURS, server, name), Contestant(f"{OURS} {OPENAI}", server, clients.over_openai(port, name))]

    @contextlib.contextmanager
    def triton(self, name: str, model: Path) -> Iterator[list[Contestant]]:
        """The contestants of the reference, with the same `model.py` in a copy of the backend's folder."""
        repository = self._write(THEIRS, name, model, "")
        backends = self.work / "backends"
        if not backends.exists():
            shutil.copytree(self.reference.root / "backends", backends, symlinks=True)
            ignored = shutil.ignore_patterns("__pycache__", "backend.toml")
            shutil.copytree(ROOT / "backends" / _BACKEND, backends / _BACKEND, ignore=ignored)
            # Of the package that naiad's guests have, the backend imports what needs no guest.
            shutil.copytree(ROOT / "stubs" / "naiad_stub", backends / _BACKEND / "naiad_stub", ignore=ignored)
        command = [
            each if not each.startswith("--backend-directory") else f"--backend-directory={backends}"
            for each in self.reference.server_command()
        ]
        given = self.reference.server_environ(packages=False)
        # The Python in the reference's stub imports packages from the prefix of the first `python3` in PATH.
        environ = {**given, "PATH": f"{self.environment.python.parent}{os.pathsep}{given['PATH']}"}
        with running(Program(THEIRS, command, environ), repository, self.work) as server:
            yield _asked(THEIRS, server, name)

    def _write(self, server: str, name: str, model: Path, further: str) -> Path:
        repository = self.work / f"{server}-{name}"
        version = repository / name / "1"
        version.mkdir(parents=True)
        settings = {"model": str(model), "max_model_len": CONTEXT, "max_num_seqs": SLOTS}
        (version / "model.json").write_text(json.dumps(settings))
        (repository / name / "config.pbtxt").write_text(_CONFIG + further)
        return repository


def _asked(server: str, started: Server, model: str) -> list[Contestant]:
    return [
        Contestant(f"{server} {HTTP}", started, clients.over_http(started.http_port, model)),
        Contestant(f"{server} {GRPC}", started, clients.over_grpc(started.grpc_port, model)),
    ]

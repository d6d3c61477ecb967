"""Starts a server with the models of the cases and sends every case to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.exchange import Answer, ask
from conformance.grpc_cases import CASES as CALLS
from conformance.grpc_cases import call
from conformance.grpc_extensions import CASES as GRPC_EXTENSIONS
from conformance.http_cases import CASES as RIGHT
from conformance.http_errors import CASES as WRONG
from conformance.http_extensions import CASES as EXTENSIONS
from conformance.http_generate import CASES as GENERATE
from conformance.http_limits import CASES as LIMITS
from support.server import TRITONSERVER, ServerProcess

HTTP_CASES = [*RIGHT, *WRONG, *GENERATE, *EXTENSIONS, *LIMITS]
GRPC_CASES = [*CALLS, *GRPC_EXTENSIONS]
MODELS = Path(__file__).with_name("models")


@contextmanager
def serving(work: Path, command: Path = TRITONSERVER) -> Iterator[tuple[ServerProcess, Path]]:
    """A server on a copy of the models (running leaves bytecode files). One of them fails to load."""
    repository = work / "repository"
    shutil.copytree(MODELS, repository, ignore=shutil.ignore_patterns("__pycache__"))
    with ServerProcess(repository, "--exit-on-error=false", work=work, command=[command], wait="loaded") as server:
        server.wait_for(lambda: _settled(server), "every model to be loaded or refused")
        yield server, repository


def answers(server: ServerProcess, repository: Path) -> dict[str, dict[str, Answer]]:
    """The responses of a server to every case."""
    return {
        "http": {case.name: ask(server.http_port, case, str(repository)) for case in HTTP_CASES},
        "grpc": {case.name: call(server.grpc_url, case, str(repository)) for case in GRPC_CASES},
    }


def _settled(server: ServerProcess) -> bool:
    index = server.post("/v2/repository/index").json()
    states = [entry.get("state") for entry in index]
    return bool(states) and all(state in {"READY", "UNAVAILABLE"} for state in states)

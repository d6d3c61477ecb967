"""A target's server is killed under load and comes back: what callers see, and what the breakers do."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import ServerProcess
from support.waiting import until
from typing_extensions import Self

from . import models

PROTOCOLS = ("http", "grpc")
BODY = json.dumps(
    {
        "inputs": [
            {"name": "X", "shape": [1, 2], "datatype": "FP32", "data": [[1.0, 2.0]]},
            {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]},
        ]
    }
)
CLEAR = re.compile(
    r"cannot call \S+: connection refused"
    # The server was killed after the kernel had accepted the connection, and before it had sent its settings.
    r"|cannot call \S+: connection reset by peer"
    r"|cannot call \S+: the connection was lost: .+"
    r"|Server not ready \(from .+\)"
    r"|Request for unknown model: 'rows' has no available versions: it is loading .+"
    r"|cannot call a remote model: the circuit breaker of each of its targets is open: \S+ is next called in .+ s, after "
    r"\d+ failures, the last: .+"
)
"""All texts that callers of a single target may see."""


class Load:
    """A client that sends requests to a model one after the other, until the `with` block ends."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        self.answered = 0
        self.failures: list[tuple[int, str]] = []
        self._server = server
        self._model = model
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._server.http_url, timeout=60)
        while not self._ending.is_set():
            connection.request("POST", f"/v2/models/{self._model}/infer", BODY)
            response = connection.getresponse()
            content = json.loads(response.read())
            if response.status == 200 and content["outputs"][0]["data"] == [2.0, 4.0]:
                self.answered += 1
            else:
                self.failures.append((response.status, content.get("error", str(content))))
        connection.close()


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers with the same model; the first one will be killed."""
    folder = tmp_path_factory.mktemp("targets")
    models.add_rows(folder / "models", "rows")
    with (
        ServerProcess(folder / "models", work=folder / "first") as first,
        ServerProcess(folder / "models", work=folder / "second") as second,
    ):
        yield first, second


@pytest.fixture(scope="module")
def caller(
    targets: tuple[ServerProcess, ServerProcess], store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Of each protocol a model with both targets, idempotent, and one with the first target alone, which is not."""
    folder = tmp_path_factory.mktemp("caller")
    common = {"model": "rows", "breaker_failures": "3", "breaker_seconds": "0.5"}
    for protocol in PROTOCOLS:
        urls = [f"{protocol}://{getattr(each, f'{protocol}_url')}" for each in targets]
        add(folder, f"both_{protocol}", {**common, "url": ",".join(urls), "idempotent": "true"})
        add(folder, f"one_{protocol}", {**common, "url": urls[0], "retries": "0"})
    with ServerProcess(folder / "models", store, work=folder) as server:
        yield server


def add(folder: Path, name: str, values: dict[str, str]) -> None:
    models.add_remote(folder / "models", name, values)


def breakers(server: ServerProcess, port: int) -> set[float]:
    """The states of all breakers for the targets at a port."""
    found = server.samples("naiad_remote_breaker_state").items()
    return {state for series, state in found if f":{port}/" in series}


def test_calls_with_two_targets_succeed_and_those_with_one_fail_clearly_until_the_killed_target_is_back(
    targets, caller
):
    first, _ = targets
    ports = (first.http_port, first.grpc_port)
    loads = {name: Load(caller, name) for name in ("both_http", "both_grpc", "one_http", "one_grpc")}
    both, one = ([load for name, load in loads.items() if name.startswith(kind)] for kind in ("both", "one"))
    with loads["both_http"], loads["both_grpc"], loads["one_http"], loads["one_grpc"]:
        until(lambda: all(each.answered >= 20 for each in loads.values()), "responses of all models")

        os.kill(first.pid, signal.SIGKILL)
        assert first.wait_exit() == -signal.SIGKILL
        # 1: half-open, while a probe is sent.
        until(lambda: all(breakers(caller, port) <= {1.0, 2.0} for port in ports), "open breakers")
        until(lambda: all("circuit breaker" in each.failures[-1][1] for each in one if each.failures), "refusals")
        before = [each.answered for each in both]
        until(
            lambda: all(each.answered >= n + 20 for each, n in zip(both, before, strict=True)),
            "the other target's responses",
        )

        first.start()
        first.wait_health("ready")
        until(lambda: all(breakers(caller, port) == {0.0} for port in ports), "closed breakers")
        before = [each.answered for each in loads.values()]

        def has_answers(count: int) -> bool:
            return all(each.answered >= n + count for each, n in zip(loads.values(), before, strict=True))

        # A client may get what a breaker refused before it closed only now: its next response is a later one.
        until(lambda: has_answers(1), "a response of each model")
        failed = [len(each.failures) for each in loads.values()]
        until(lambda: has_answers(20), "responses again")

    assert [each.failures for each in both] == [[], []]
    assert [len(each.failures) for each in loads.values()] == failed  # none since the breakers closed
    for each in one:
        assert each.failures
        assert {status for status, _ in each.failures} == {503}
        assert [text for _, text in each.failures if not CLEAR.fullmatch(text)] == []

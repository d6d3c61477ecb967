"""When a server opens its ports, and what it says on them until its models are loaded: in this process, without guests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.parsing import parse
from support.model_files import write_files
from support.server import free_ports
from support.waiting import until_async

from naiad.cli.serve import log_settings, open_log
from naiad.core.errors import ExecutionEnvironmentError, OptionError
from naiad.engine.loading import loader
from naiad.server import app, listeners

CONFIG = 'backend: "python"\noutput [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    )
    head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


class Build:
    """The preparation of the environment of the only model, which ends when the test says so, and fails."""

    def __init__(self) -> None:
        self.is_running, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> Any:
        self.is_running.set()
        assert self.may_end.wait(60)
        raise ExecutionEnvironmentError("cannot build it")


class Server:
    """A server of a repository with the model `m`, or of an empty one.

    Attributes:
        http: Its port of HTTP; the others are `all_ports`.
        build: See `Build`.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.all_ports = free_ports(4)
        self.http = self.all_ports[0]
        self.build = Build()
        self.listening = asyncio.Event()
        self._serving: asyncio.Future[int] | None = None
        monkeypatch.setattr(loader, "prepare_environment", self.build)
        for name in ("resume", "settle"):  # they are for a process that does nothing else
            monkeypatch.setattr(app.garbage_collection, name, lambda: None)

    def add_model(self) -> None:
        write_files(self.folder, "m", CONFIG, "class TritonPythonModel:\n    pass\n")

    async def run(self, engine: object) -> None:
        """Implement `app.Supervisor`, as `on_listening`."""

    def on_listening(self, ports: Mapping[str, int]) -> None:
        assert list(ports.values()) == [self.all_ports[1], self.http, *self.all_ports[2:]]
        self.listening.set()

    def serve(self, *flags: str, check: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """The exit code of a server, which is ended after *check* unless it has ended by itself."""
        names = ("http", "grpc", "openai", "metrics")
        ports = [f"--{name}-port={port}" for name, port in zip(names, self.all_ports, strict=True)]
        addresses = [f"--{name}-address=127.0.0.1" for name in names]
        options = parse(*ports, *addresses, *flags, repository=f"--model-repository={self.folder}")

        async def run() -> int:
            with open_log(log_settings(options)) as log:
                serving = self._serving = asyncio.ensure_future(app._serve(options, log, self, is_brief=True))
                try:
                    await check()
                    if not serving.done():
                        os.kill(os.getpid(), signal.SIGTERM)
                    return await asyncio.wait_for(serving, 60)
                finally:
                    self.build.may_end.set()

        return asyncio.run(run())

    async def until_open(self) -> None:
        async def wait() -> None:
            while not await is_open(self.all_ports[3]):  # the last one
                await asyncio.sleep(0.005)

        await asyncio.wait_for(wait(), 60)

    async def until_ended(self) -> None:
        assert self._serving is not None
        await asyncio.wait([self._serving], timeout=60)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path, monkeypatch)


def test_a_server_is_not_ready_before_the_last_of_its_ports_is_open(server, monkeypatch):
    seen: list[int] = []
    start_last = listeners._start_openai

    async def ask_before(*arguments: object, **keywords: object) -> None:
        seen.append((await ask(server.http, "/v2/health/ready"))[0])
        await start_last(*arguments, **keywords)

    monkeypatch.setattr(listeners, "_start_openai", ask_before)

    async def check() -> None:
        await asyncio.wait_for(server.listening.wait(), 60)
        seen.append((await ask(server.http, "/v2/health/ready"))[0])

    assert server.serve(check=check) == 0
    assert seen == [400, 200]


@pytest.mark.parametrize("exits", [False, True])
def test_while_models_load_a_server_is_live_and_says_what_it_does(server, exits, capfd):
    server.add_model()
    text = "Request for unknown model: 'm' has no available versions"
    step = "preparing its environment"

    async def check() -> None:
        await server.until_open()
        assert await ask(server.http, "/v2/health/live") == (200, b"")
        assert (await ask(server.http, "/v2/health/ready"))[0] == 400
        await until_async(server.build.is_running.is_set, "the build")
        status, body = await ask(server.http, "/v2/repository/index", "POST")
        assert (status, json.loads(body)) == (
            200,
            [{"name": "m", "version": "1", "state": "LOADING", "reason": step}],
        )
        status, body = await ask(server.http, "/v2/models/m/infer", "POST")
        assert (status, json.loads(body)) == (503, {"error": f"{text}: it is loading ({step})"})
        assert (await ask(server.http, "/v2/models/m/ready"))[0] == 400
        assert (await ask(server.http, "/v2/models/x/ready"))[0] == 404
        assert [(await ask(server.all_ports[2], path))[0] for path in ("/health", "/v1/models")] == [503, 200]
        assert (await ask(server.all_ports[3], "/metrics"))[0] == 200
        assert not server.listening.is_set()
        server.build.may_end.set()
        if exits:
            await server.until_ended()
            return
        await asyncio.wait_for(server.listening.wait(), 60)
        assert (await ask(server.http, "/v2/health/ready"))[0] == 400
        status, body = await ask(server.http, "/v2/models/m/infer", "POST")
        assert (status, json.loads(body)) == (404, {"error": text})

    assert server.serve(f"--exit-on-error={exits}".lower(), check=check) == int(exits)
    said = capfd.readouterr().err
    http, grpc, openai, metrics = server.all_ports
    line = f"The models load, and the server answers meanwhile: grpc {grpc}, http {http}, openai {openai}, metrics {metrics}"
    assert said.count(line) == 1
    assert ("cannot serve: 1 of 1 models failed: m (cannot build it)" in said) is exits
    assert (f"Started HTTPService at 127.0.0.1:{http}" in said) is not exits


def test_a_signal_while_models_load_ends_the_server_and_its_connections(server):
    server.add_model()

    async def check() -> None:
        await server.until_open()
        await until_async(server.build.is_running.is_set, "the build")

    assert server.serve(check=check) == 0


def test_a_port_that_cannot_be_opened_ends_the_start_although_models_still_load(server, monkeypatch):
    server.add_model()

    async def fail(*_: object, **__: object) -> None:
        assert server.build.is_running.wait(60)
        raise OptionError("cannot serve HTTP at 127.0.0.1:1: Address already in use")

    monkeypatch.setattr(listeners, "_start_openai", fail)
    with pytest.raises(OptionError, match="Address already in use"):
        server.serve(check=server.until_ended)


@pytest.mark.parametrize("flag", ["--reuse-http-port=true", "--reuse-grpc-port=true", "--listen-while-loading=false"])
def test_ports_that_other_servers_may_share_or_that_are_to_wait_open_when_the_models_are_loaded(
    server, flag, monkeypatch
):
    server.add_model()
    imported = asyncio.Event()
    import_listeners = app._import_listeners

    async def note_import(*arguments: Any) -> None:
        await import_listeners(*arguments)
        imported.set()

    monkeypatch.setattr(app, "_import_listeners", note_import)

    async def check() -> None:
        await until_async(server.build.is_running.is_set, "the build")
        await imported.wait()
        assert not any([await is_open(port) for port in server.all_ports])
        server.build.may_end.set()
        await asyncio.wait_for(server.listening.wait(), 60)
        assert all([await is_open(port) for port in server.all_ports])

    assert server.serve(flag, "--exit-on-error=false", check=check) == 0

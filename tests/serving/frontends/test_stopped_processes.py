"""A process of the server that is stopped (SIGSTOP) is replaced, and holds no change of models up."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
from cli.parsing import parse
from serving.repositories import repository
from support.server import free_ports

from naiad.cli.serve import log_settings, open_log
from naiad.server.app import build_engine, build_loader, listen, make_replicas, start_processes
from naiad.server.processes import pool as pools


def others() -> list[int]:
    children = psutil.Process().children()
    return [each.pid for each in children if each.status() != psutil.STATUS_ZOMBIE and is_of_server(each)]


def is_of_server(process: psutil.Process) -> bool:
    return "naiad-process" in process.cmdline()


def test_a_stopped_process_is_killed_and_another_one_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "HANG_SECONDS", 3.0)
    http, grpc, metrics = free_ports(3)
    numbers = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    addresses = [f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")]
    models = repository(tmp_path / "models", ["identity"])
    options = parse(
        *("--processes=3", "--model-control-mode=explicit"),
        *numbers,
        *addresses,
        repository=f"--model-repository={models}",
    )

    async def serve() -> None:
        replicas = make_replicas(options)
        assert replicas is not None
        loader = build_loader(options, replicas=replicas)
        engine = build_engine(options, loader)
        async with AsyncExitStack() as stack:
            stack.callback(replicas.close)
            stack.push_async_callback(engine.stop)
            log = stack.enter_context(open_log(log_settings(options)))
            processes = start_processes(engine, loader.link_memory, replicas, options, log, stack)
            await engine.start()
            ports = await listen(engine, loader, options, log, stack, processes)
            before = set(others())
            assert len(before) == 2
            stopped = min(before)
            os.kill(stopped, signal.SIGSTOP)
            await engine.load("identity", {})
            while len(now := set(others())) < 2 or stopped in now:
                await asyncio.sleep(0.05)
            assert not psutil.pid_exists(stopped)
            assert ports.listeners.ports["http"] == http

    asyncio.run(asyncio.wait_for(serve(), 90))

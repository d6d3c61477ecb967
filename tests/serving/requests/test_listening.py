"""A server says that it is ready once whatever it answers on is open."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from cli.parsing import parse
from support.server import free_ports

from naiad.cli.serve import log_settings, open_log
from naiad.server import listeners
from naiad.server.app import build_engine, build_loader, listen


async def status(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
    line = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    return int(line.split()[1])


def test_a_server_is_not_ready_before_the_last_of_its_ports_is_open(tmp_path, monkeypatch):
    http, grpc, metrics, openai = free_ports(4)
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}", f"--openai-port={openai}"]
    ports += [f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics", "openai")]
    options = parse(*ports, repository=f"--model-repository={tmp_path}")
    seen: list[int] = []
    start_last = listeners._start_openai

    async def ask_before(*arguments: object, **keywords: object) -> None:
        seen.append(await status(http))
        await start_last(*arguments, **keywords)

    monkeypatch.setattr(listeners, "_start_openai", ask_before)

    async def serve() -> None:
        loader = build_loader(options)
        engine = build_engine(options, loader)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.stop)
            await engine.start()
            log = stack.enter_context(open_log(log_settings(options)))
            await listen(engine, loader, options, log, stack, None)
            seen.append(await status(http))

    asyncio.run(serve())
    assert seen == [400, 200]

"""A connection is checked for its time limits, whatever happens between its acceptance and its registration.

With TLS the whole handshake is in between: the loop makes the protocol first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from naiad.core.turns import LoopTurns
from naiad.frontends.grpc.server import GrpcServer
from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http2.limits import Http2Limits
from naiad.frontends.timeouts import TimeoutSweep


class Transport(asyncio.Transport):
    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass


class Application:
    def parse_head(self, head):
        raise AssertionError

    def handle_request(self, stream, head):
        raise AssertionError


Listening = tuple[Callable[[], asyncio.BaseProtocol], TimeoutSweep, Callable[[], object]]


async def http() -> Listening:
    listener = HttpListener(lambda _: None, address="127.0.0.1", port=0, advice="")
    await listener.start()
    return listener._connect, listener._sweep, lambda: listener.stop(0)


async def grpc() -> Listening:
    loop = asyncio.get_running_loop()
    server = GrpcServer(Application(), Http2Limits(), GrpcSettings(), None, LoopTurns(loop))
    await server.start("127.0.0.1", 0, reuse_port=False)
    return server._connect, server._sweep, lambda: stop(server)


async def stop(server: GrpcServer) -> None:
    await server.close_listening()
    await server.stop(0)


@pytest.mark.parametrize("listen", [http, grpc])
async def test_sweep_between_acceptance_and_registration_is_not_the_last_one(listen):
    connect, sweep, stop = await listen()
    try:
        first = connect()
        first.connection_made(Transport())
        first.connection_lost(None)
        second = connect()  # accepted
        sweep._sweep()  # the timer that the first one set: no connection is registered
        second.connection_made(Transport())
        assert sweep._timer is not None, "nothing will check the second connection"
        second.connection_lost(None)
    finally:
        await stop()

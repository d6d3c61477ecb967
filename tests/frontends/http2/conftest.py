"""An echo server on the host's HTTP/2, and clients that send and receive single frames."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from fakes.serving import LoopThread
from frontends.http2.echo import EchoServer
from frontends.http2.peer import Peer

from naiad.frontends.http2.keepalive import KeepaliveSettings
from naiad.frontends.http2.limits import Http2Limits


@pytest.fixture
def serve(loop: LoopThread) -> Iterator[Callable[..., EchoServer]]:
    with contextlib.ExitStack() as stack:

        def serve(limits: Http2Limits | None = None, **keepalive: float) -> EchoServer:
            # Tests ping as often as they like, unless they set the limit.
            chosen = KeepaliveSettings(**{"max_ping_strikes": 0, **keepalive})
            return stack.enter_context(contextlib.closing(EchoServer(loop, limits or Http2Limits(), chosen)))

        yield serve


@pytest.fixture
def server(serve: Callable[..., EchoServer]) -> EchoServer:
    return serve()


@pytest.fixture
def connect() -> Iterator[Callable[..., Peer]]:
    with contextlib.ExitStack() as stack:
        yield lambda server, **options: stack.enter_context(contextlib.closing(Peer(server.port, **options)))


@pytest.fixture
def peer(server: EchoServer, connect: Callable[..., Peer]) -> Peer:
    return connect(server)

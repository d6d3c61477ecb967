"""Start, stop and settings of the frontend."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from concurrent.futures import Future

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from fakes.engine import FakeEngine
from frontends.http2.peer import REQUEST, Peer
from support.client_inputs import input_of
from tritonclient.utils import InferenceServerException

from naiad.core.errors import OptionError
from naiad.frontends.grpc import server as grpc_server
from naiad.frontends.grpc.gate import SHUTTING_DOWN
from naiad.frontends.grpc.response_fields import shorten
from naiad.frontends.grpc.settings import CompressionLevel, GrpcSettings
from naiad.frontends.http2 import frames
from naiad.frontends.http2.keepalive import KeepaliveSettings
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend


def infer_later(client, model="held", size=1) -> Future:
    tensor = input_of(triton, "INPUT0", np.zeros(size, np.float32))
    future: Future = Future()

    def done(result, error):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    client.async_infer(model, [tensor], done)
    return future


def test_a_port_in_use_is_named_with_the_reason_and_the_option(loop):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OptionError) as caught:
            loop.run(GrpcFrontend(FakeEngine(), address="127.0.0.1", port=port).start())
    assert caught.value.message == (
        f"cannot serve gRPC at 127.0.0.1:{port}: Address already in use; "
        "set another address or port with --grpc-address or --grpc-port"
    )


def test_an_address_of_another_machine_is_refused(loop):
    with pytest.raises(OptionError, match=r"cannot serve gRPC at 192\.0\.2\.1:\d+: Cannot assign requested address"):
        loop.run(GrpcFrontend(FakeEngine(), address="192.0.2.1", port=21499).start())


def test_two_frontends_share_a_port_only_if_configured(loop):
    def frontend(port, reuse_port):
        return GrpcFrontend(FakeEngine(), address="127.0.0.1", port=port, reuse_port=reuse_port)

    first, second = frontend(0, True), None
    port = loop.run(first.start())
    try:
        second = frontend(port, True)
        assert loop.run(second.start()) == port
        with pytest.raises(OptionError):
            loop.run(frontend(port, False).start())
    finally:
        for started in filter(None, (first, second)):
            loop.run(started.stop(0))


def test_stopping_a_frontend_that_never_started_does_nothing(loop):
    loop.run(GrpcFrontend(FakeEngine(), address="127.0.0.1", port=0).stop(1))


def test_stop_closes_the_port_at_once_and_waits_for_requests_in_flight(served, client):
    """The port stayed open, and proxies gave their clients the rejections: they took them for responses."""
    running = infer_later(client)
    served.loop.until(lambda: served.engine.held)
    stopping = asyncio.run_coroutine_threadsafe(served.frontend.stop(20), served.loop.loop)
    served.loop.until(lambda: served.frontend._gate.is_closed)

    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", served.port)):
        pass
    refused = infer_later(client, "identity").exception(timeout=10)
    assert isinstance(refused, InferenceServerException)
    assert refused.status() == "StatusCode.UNAVAILABLE"
    assert "Connection refused" in refused.message()
    assert not stopping.done()

    served.loop.call(served.engine.release)
    assert running.result(timeout=10).as_numpy("OUTPUT0").tolist() == [0]
    stopping.result(timeout=10)


def test_a_connection_that_arrives_during_a_stop_may_send_a_first_request(loop, monkeypatch):
    """Its client got GOAWAY before it had sent anything, and failed the call that had asked for the connection."""
    monkeypatch.setattr(grpc_server, "_FIRST_REQUEST_SECONDS", 60)
    frontend = GrpcFrontend(FakeEngine(), address="127.0.0.1", port=0)
    port = loop.run(frontend.start())
    with contextlib.closing(Peer(port)) as peer:
        loop.until(lambda: frontend._server.connections)
        server = frontend._server
        stopping = asyncio.run_coroutine_threadsafe(frontend.stop(20), loop.loop)
        loop.until(lambda: not server._servers)
        peer.send(frames.ping(b"a while."))
        assert peer.until(frames.PING).flags == frames.ACK
        assert server.connections
        shown = {frames.HEADERS, frames.GOAWAY}
        path = (":path", "/inference.GRPCInferenceService/ServerLive")
        peer.request(1, fields=(*REQUEST[:2], path, *REQUEST[3:], ("content-type", "application/grpc")))
        peer.data(1, bytes(5), ends=True)
        assert next(frame.kind for frame in iter(peer.read, None) if frame.kind in shown) == frames.HEADERS
    stopping.result(timeout=30)


def test_stop_cancels_requests_after_the_grace(served, client):
    running = infer_later(client)
    served.loop.until(lambda: served.engine.held)
    served.loop.run(served.frontend.stop(0.05))
    assert isinstance(running.exception(timeout=10), InferenceServerException)
    served.loop.until(lambda: served.engine.cancelled)


def test_stop_ends_idle_streams_at_once(served, client):
    received: Future = Future()
    client.start_stream(lambda result, error: received.set_result(error))
    tensor = input_of(triton, "IN", np.zeros(1, np.int32))
    client.async_stream_infer("repeat", [tensor])
    served.loop.until(lambda: served.engine.requests)

    served.loop.run(served.frontend.stop(25))

    error = received.result(timeout=10)
    assert (error.status(), error.message()) == ("StatusCode.UNAVAILABLE", SHUTTING_DOWN)
    client.stop_stream()


def received_bytes(served, serve_bytes=1_000_000) -> int:
    """How many bytes a client gets for an output of a million zeros, counted between client and server."""
    counted = 0

    async def pump(reader, writer, count):
        nonlocal counted
        while data := await reader.read(65536):
            counted += len(data) if count else 0
            writer.write(data)
        writer.close()

    async def relay(reader, writer):
        upstream = await asyncio.open_connection("127.0.0.1", served.port)
        await asyncio.gather(pump(reader, upstream[1], False), pump(upstream[0], writer, True))

    async def listen():
        return await asyncio.start_server(relay, "127.0.0.1", 0)

    relay_server = served.loop.run(listen())
    port = relay_server.sockets[0].getsockname()[1]
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        array = np.zeros(serve_bytes // 4, np.float32)
        tensor = input_of(triton, "INPUT0", array)
        assert client.infer("identity", [tensor]).as_numpy("OUTPUT0").nbytes == serve_bytes

    async def close():
        relay_server.close()
        await relay_server.wait_closed()

    served.loop.run(close())
    return counted


def test_responses_are_compressed_only_if_set(serve):
    assert received_bytes(serve()) > 1_000_000
    assert received_bytes(serve(GrpcSettings(response_compression=CompressionLevel.HIGH))) < 100_000


def test_a_connection_is_closed_at_its_greatest_age(serve):
    served = serve(GrpcSettings(max_connection_age_ms=1000, max_connection_age_grace_ms=1000))
    states = []
    with grpc.insecure_channel(served.url) as channel:
        closed: Future = Future()

        def watch(state):
            states.append(state)
            if state is grpc.ChannelConnectivity.IDLE and grpc.ChannelConnectivity.READY in states:
                closed.set_result(True) if not closed.done() else None

        channel.subscribe(watch, try_to_connect=True)
        assert closed.result(timeout=30)


def test_default_settings_are_the_references():
    assert GrpcSettings().keepalive() == KeepaliveSettings(
        keepalive_time=7200,
        keepalive_timeout=20,
        keepalive_without_calls=False,
        max_pings_without_data=2,
        min_ping_interval=300,
        max_ping_strikes=2,
        max_age=math.inf,
        max_age_grace=math.inf,
    )


@pytest.mark.parametrize("text", ["", "short", "ä" * 100])
def test_texts_that_fit_are_unchanged(text):
    assert shorten(text, 1000) == text


@pytest.mark.parametrize("letter", ["x", "ä", "\n", "🙂"])
def test_longer_texts_lose_their_middle(letter):
    text = "begin" + letter * 5000 + "end"
    cut = shorten(text, 1000)
    assert cut.startswith("begin" + letter)
    assert cut.endswith(letter + "end")
    assert " [...] " in cut
    assert 900 < len(cut.encode()) * (1 if letter == "x" else 3) < 1100

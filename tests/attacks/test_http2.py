"""Floods of HTTP/2 on one connection: they are stopped, GOAWAY says why, and other clients are served meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from attacks import floods
from attacks.conftest import warm_up
from attacks.floods import Flooder, Requests, data, infer_message, joined, message, repeated
from attacks.watching import attacked_server, harmless, watched
from support.server import ServerProcess

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import ErrorCode, Setting

_MEMORY = 32 << 20
_SIZE = 16 << 20
"""Bytes that a flood may take at most before it is stopped: a second of processor time, as the server estimates it."""

STOPPED: dict[Callable[[int], Iterator[bytes]], str] = {
    floods.huffman: "compressed fields",
    floods.one_byte_data: "DATA frames of few bytes",
    floods.rapid_reset: "requests that are cancelled",
    floods.continuations: "a field block does not end",
}
STOPPED_TOO: dict[Callable[[int], Iterator[bytes]], str] = {
    floods.churn: "compressed fields",
    floods.indexed: "compressed fields",
    floods.padded_data: "DATA frames of few bytes",
    floods.empty_data: "DATA frames of few bytes",
    floods.stream_windows: "WINDOW_UPDATE frames",
    floods.connection_windows: "WINDOW_UPDATE frames",
    floods.windows_of_ended_streams: "WINDOW_UPDATE frames",
    floods.settings: "SETTINGS frames",
    floods.settings_that_move_windows: "SETTINGS frames",
    floods.long_settings: "SETTINGS of 1020000 bytes",
    floods.pings: "too_many_pings",
    floods.ping_acknowledgements: "PING frames",
    floods.priorities: "frames without a meaning, such as PRIORITY",
    floods.unknown_frames: "frames without a meaning, such as PRIORITY",
    floods.rapid_reset_of_inferences: "requests that are cancelled",
    floods.resets_of_ended_streams: "requests that are cancelled",
    floods.made_you_reset_by_windows: "stream errors",
    floods.made_you_reset_by_overflow: "stream errors",
    floods.made_you_reset_by_data: "stream errors",
    floods.made_you_reset_by_headers: "stream errors",
    floods.refused_streams: "streams beyond the limit",
    floods.empty_continuations: "a field block does not end",
    floods.long_headers: "a field block of 1048576 bytes is too long",
}


@pytest.mark.parametrize(
    ("flood", "reason"),
    [
        *(pytest.param(*case, id=case[0].__name__) for case in STOPPED.items()),
        *(pytest.param(*case, id=case[0].__name__, marks=pytest.mark.endurance) for case in STOPPED_TOO.items()),
    ],
)
def test_flood_is_stopped(server: ServerProcess, flood: Callable[[int], Iterator[bytes]], reason: str) -> None:
    with watched(server) as seen, closing(Flooder(server.grpc_port)) as client:
        client.send(flood(_SIZE))
        client.read_until(lambda: client.go_away)
    assert client.go_away is not None
    assert client.go_away.code == ErrorCode.ENHANCE_YOUR_CALM
    assert reason in client.go_away.text
    seen.assert_others_served()
    seen.assert_memory(_MEMORY)


def test_response_that_is_taken_byte_by_byte_is_stopped(server: ServerProcess) -> None:
    """CVE-2019-9511."""
    content = message(infer_message(size=100_000))
    with watched(server) as seen, closing(Flooder(server.grpc_port, [(Setting.INITIAL_WINDOW_SIZE, 0)])) as client:
        client.send([Requests("ModelInfer").begin(1)])
        client.send(data(1, content[start : start + 16_000]) for start in range(0, len(content), 16_000))
        client.send([data(1, b"", ends=True)])
        client.read_until(lambda: client.has_response)
        client.send(repeated(frames.window_update(1, 1), _SIZE))
        client.read_until(lambda: client.go_away)
    assert client.go_away is not None
    assert "WINDOW_UPDATE" in client.go_away.text
    seen.assert_others_served()
    seen.assert_memory(_MEMORY)


@pytest.mark.endurance
def test_many_connections_that_flood_at_once_delay_no_request(server: ServerProcess) -> None:
    """Each of them alone takes more than a turn of the loop."""
    count = 24
    with harmless(server, _MEMORY):
        clients = [Flooder(server.grpc_port) for _ in range(count)]
        try:
            for number, client in enumerate(clients):
                flood = (floods.one_byte_data, floods.churn, floods.rapid_reset)[number % 3]
                client.send(flood(1 << 18))
            for client in clients:
                client.synchronize()
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize(
    ("content", "frame_size"),
    [
        pytest.param(b"ab", 200_000, id="malformed, long frames"),
        *(
            pytest.param(content, size, id=f"{name}, frames of {size} bytes", marks=pytest.mark.endurance)
            for name, content in {"empty": b"", "malformed": b"ab", "requests": infer_message()}.items()
            for size in (16_000, 200_000)
            if (content, size) != (b"ab", 200_000)
        ),
    ],
)
def test_many_tiny_messages_on_a_stream_delay_no_request(
    server: ServerProcess, content: bytes, frame_size: int
) -> None:
    """They are work, with an answer each: 20,000 error responses take a second, and 3,000 fit into a frame."""
    one = message(content)
    count = 4000 if len(content) > 2 else 20_000
    size = frame_size // len(one) * len(one)
    with watched(server) as seen, closing(Flooder(server.grpc_port)) as client:
        client.open_windows()
        client.send([Requests("ModelStreamInfer").begin(1)])
        whole = one * count
        client.send(data(1, whole[start : start + size]) for start in range(0, len(whole), size))
        client.send([data(1, b"", ends=True)])
        client.read_until(lambda: client.is_complete)
    assert client.is_complete
    assert client.go_away is None
    seen.assert_others_served()
    seen.assert_memory(_MEMORY)


@pytest.mark.parametrize("frame_size", [pytest.param(16_000, marks=pytest.mark.endurance), 200_000])
def test_tiny_messages_of_a_unary_call_delay_no_request(server: ServerProcess, frame_size: int) -> None:
    """Of several messages, the first counts."""
    with watched(server) as seen, closing(Flooder(server.grpc_port)) as client:
        client.send([Requests("ServerLive").begin(1)])
        client.send(data(1, message(b"") * (frame_size // 5)) for _ in range(4_000_000 // frame_size))
        client.send([data(1, b"", ends=True)])
        client.read_until(lambda: client.is_complete)
    assert client.is_complete
    seen.assert_others_served()
    seen.assert_memory(_MEMORY)


@pytest.mark.endurance
def test_tiny_messages_to_a_client_that_reads_no_responses_take_little_memory(repository: Path, tmp_path: Path) -> None:
    """As many as the window holds: a million, each of which would take ten times its size as an object.

    On a server of its own: how much the heap grows depends on what earlier floods have left there (13 or 29 MiB).
    """
    with attacked_server(repository, work=tmp_path / "server") as server:
        warm_up(server)
        with watched(server) as seen, closing(Flooder(server.grpc_port)) as client:
            client.send([Requests("ModelStreamInfer").begin(1)])
            client.send(data(1, message(b"ab") * 2000) for _ in range(600))
            client.synchronize()
    seen.assert_others_served()
    seen.assert_memory(_MEMORY)


@pytest.mark.endurance
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_streams_without_end_take_little_memory_and_leave_room_for_others(server: ServerProcess, method: str) -> None:
    """As many as one connection may open, on several connections."""
    # Each frontend process has the limit on streams of its own.
    with harmless(server, (192 << 20) * len(server.serving())), contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(closing(Flooder(server.grpc_port)))
            requests = Requests(method)
            client.send(joined(requests.begin(number) for number in range(1, 2 << 14, 2)))
            client.synchronize()
        if not server.others():  # else the last connection may be alone in its process
            assert client.resets >= 8192
        other = stack.enter_context(closing(Flooder(server.grpc_port)))
        other.send([Requests("ModelInfer").begin(1), data(1, message(infer_message()), ends=True)])
        other.read_until(lambda: other.is_complete)
        assert other.is_complete
        assert other.resets == 0

"""Frames of one turn of the loop are one write, which costs as much as making a short response."""

from __future__ import annotations

from typing import Any

from frontends.http2.peer import REQUEST

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import Setting

HOLD = tuple((name, "/hold" if name == ":path" else value) for name, value in REQUEST)
FLOW = tuple((name, "/flow" if name == ":path" else value) for name, value in REQUEST)


class Counted:
    """A transport that counts its writes."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.writes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.writes.append(len(data))
        self._transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.writes.append(sum(map(len, parts)))
        self._transport.writelines(parts)


def count(server: Any) -> Counted:
    """Have the only connection of a server write to a counting transport."""
    [connection] = server.connections
    connection._writer.transport = counted = Counted(connection._writer.transport)
    return counted


def held(server: Any, peer: Any, *contents: bytes) -> list[int]:
    """Streams whose responses wait for `release`."""
    streams = list(range(1, 2 * len(contents), 2))
    for stream, content in zip(streams, contents, strict=True):
        peer.request(stream, fields=HOLD)
        peer.data(stream, content, ends=True)
    assert peer.is_alive()
    return streams


def test_responses_of_one_turn_of_the_loop_are_one_write(server, peer):
    streams = held(server, peer, *(b"%d" % index for index in range(8)))
    counted = count(server)
    server.release()
    assert [peer.response(stream)[1] for stream in streams] == [b"%d" % index for index in range(8)]
    assert len(counted.writes) == 1


def test_separate_writes_keep_their_order_among_joined_ones(server, connect):
    """Long responses and control frames are written separately."""
    peer = connect(server, preface=frames.PREFACE + frames.settings([(Setting.MAX_FRAME_SIZE, 1 << 20)]))
    peer.send(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 20)]), frames.window_update(0, 1 << 20))
    streams = held(server, peer, b"short", b"x" * 100_000, b"last")
    counted = count(server)

    def release() -> None:
        for handler in server.handlers:
            handler.respond()
            handler.stream.controller.ping(b"%08d" % handler.stream.number)

    server.loop.call(release)
    order = [peer.read() for _ in range(4 * len(streams))]
    assert [frame.payload for frame in order if frame.kind == frames.PING] == [b"%08d" % stream for stream in streams]
    assert [frame.stream or "ping" for frame in order] == [1, 1, 1, "ping", 3, 3, 3, "ping", 5, 5, 5, "ping"]
    # The short response and the ping behind it are one write. After the long one, no other stream was open to join.
    assert len(counted.writes) == 5


def test_messages_of_a_stream_are_written_together_and_before_its_end(server, peer):
    peer.request(1, fields=FLOW)
    assert peer.is_alive()
    counted = count(server)
    peer.send(
        *(frames.frame(frames.DATA, 0, 1, b"%d" % index) for index in range(5)),
        frames.frame(frames.DATA, frames.END_STREAM, 1, b"!"),
    )
    assert peer.response(1)[1:] == (b"01234!", {"x-done": "yes"})
    assert len(counted.writes) <= 2

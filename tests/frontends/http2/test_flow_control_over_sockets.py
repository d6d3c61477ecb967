"""Flow control on real connections: nothing exceeds a window, nothing is lost, streams take turns."""

from __future__ import annotations

from itertools import pairwise

from frontends.http2.peer import FLOW, HOLD

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import Setting
from naiad.frontends.http2.limits import Http2Limits


def preface(**settings):
    return frames.PREFACE + frames.settings([(Setting[name.upper()], value) for name, value in settings.items()])


def content(peer, stream, size):
    """At least *size* bytes of a stream's content."""
    found = b""
    while len(found) < size:
        found += peer.until(frames.DATA, stream=stream).payload
    return found


def test_content_waits_for_the_window_of_its_stream(server, connect):
    peer = connect(server, preface=preface(initial_window_size=10))
    peer.call(1, b"0123456789abcdefghijklmno")
    assert content(peer, 1, 10) == b"0123456789"
    assert peer.is_alive()
    peer.send(frames.window_update(1, 3))
    assert content(peer, 1, 3) == b"abc"
    peer.send(frames.window_update(1, 100))
    assert content(peer, 1, 12) == b"defghijklmno"
    assert peer.fields(peer.until(frames.HEADERS, stream=1).payload) is not None


def test_content_waits_for_the_window_of_the_connection(server, connect):
    peer = connect(server, preface=preface(initial_window_size=1 << 20, max_frame_size=1 << 20))
    sent = bytes(range(256)) * 400  # more than the 65,535 bytes of a new connection
    peer.call(1, sent)
    assert content(peer, 1, 65535) == sent[:65535]
    assert peer.is_alive()
    peer.send(frames.window_update(0, 1 << 20))
    assert content(peer, 1, len(sent) - 65535) == sent[65535:]


def test_settings_are_acknowledged_before_their_windows_are_used(server, connect):
    """Clients apply new windows with the acknowledgement, and end a connection that uses them earlier."""
    peer = connect(server, preface=preface(initial_window_size=0))
    peer.call(1, b"x" * 30)
    assert peer.is_alive()
    peer.send(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 100)]))
    assert [peer.read().kind for _ in range(2)] == [frames.SETTINGS, frames.DATA]


def test_frames_are_no_longer_than_the_peer_accepts(server, connect):
    peer = connect(server)
    peer.call(1, b"x" * 40_000)
    sizes = []
    while sum(sizes) < 40_000:
        sizes.append(len(peer.until(frames.DATA).payload))
    assert max(sizes) == frames.DEFAULT_FRAME_SIZE


def test_padding_and_discarded_content_count_for_the_window(serve, connect):
    peer = connect(serve(Http2Limits(window=100_000)))
    peer.until(frames.WINDOW_UPDATE)
    peer.request(1, fields=HOLD)
    peer.send(frames.window_update(1, 0))
    peer.until(frames.RST_STREAM)
    for _ in range(3):
        peer.send(frames.frame(frames.DATA, frames.PADDED, 1, b"\xff" + b"x" * 17_000 + bytes(255)))
    assert peer.until(frames.WINDOW_UPDATE).number == 3 * (17_000 + 256)


def test_streams_take_turns(server, connect):
    """A long response does not delay a short one."""
    peer = connect(server, preface=preface(initial_window_size=1 << 20, max_frame_size=1 << 20))
    for number in (1, 3):
        peer.request(number, fields=HOLD)
        for _ in range(10):
            peer.data(number, b"x" * 100_000)
    server.loop.until(lambda: [len(handler.content) for handler in server.handlers] == [1_000_000] * 2)
    server.release()
    peer.send(frames.window_update(0, 1 << 21))
    order = []
    while order.count(1) < 3 or order.count(3) < 3:
        order.append(peer.until(frames.DATA).stream)
    changes = sum(a != b for a, b in pairwise(order))
    assert changes >= 4


def test_markers_are_returned_once_their_message_was_sent(server, connect):
    peer = connect(server, preface=preface(initial_window_size=10))
    peer.request(1, fields=FLOW)
    for piece in (b"12345", b"67890", b"abc"):
        peer.data(1, piece)
    server.loop.until(lambda: server.handlers and server.handlers[0].markers == [5, 10])
    peer.send(frames.window_update(1, 2))
    assert peer.is_alive()
    assert server.handlers[0].markers == [5, 10]
    peer.send(frames.window_update(1, 1))
    server.loop.until(lambda: server.handlers[0].markers == [5, 10, 13])


def test_sending_pauses_while_the_client_does_not_read(server, connect):
    """The socket's buffers fill; the rest waits in the stream and is sent once the client reads."""
    peer = connect(server, preface=preface(initial_window_size=1 << 30, max_frame_size=1 << 20))
    peer.send(frames.window_update(0, 1 << 30))
    peer.request(1, fields=FLOW)
    piece = b"x" * 500_000
    for _ in range(20):
        peer.data(1, piece)
    server.loop.until(lambda: server.handlers and len(server.handlers[0].content) == 20 * len(piece))
    stream = server.handlers[0].stream
    assert 0 < stream.unsent < 20 * len(piece)
    assert len(content(peer, 1, 20 * len(piece))) == 20 * len(piece)
    assert stream.unsent == 0

"""A model that prints, logs or answers far too much holds up only itself."""

from __future__ import annotations

import re

import pytest
from attacks.conftest import warm_up
from attacks.watching import attacked_server, harmless
from serving.written import send_code, write_model
from support.waiting import until

_RUNS = """
def execute(self, requests):
    for request in requests:
        exec(pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode(), globals())
    error = pb_utils.TritonError(globals().pop("text")) if "text" in globals() else None
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b"done"], object))], error=error)
            for request in requests]
"""
_FRAME = """
import socket, struct
folder = "/proc/self/fd/"
sockets = [socket.socket(fileno=os.dup(int(each))) for each in os.listdir(folder)
           if "socket:" in os.path.realpath(folder + each)]
# The other one, for descriptors, keeps the bounds of its messages.
(host,) = [each for each in sockets if each.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM]
host.setblocking(True)
host.sendall(struct.pack("<IHH", {size}, {kind}, 0))
piece = bytes(1 << 20)
for _ in range({size} >> 20):
    host.sendall(piece)
"""


@pytest.fixture(scope="module")
def server(repository, work):
    write_model(work / "models", "prints", _RUNS)
    write_model(work / "models", "dies", _RUNS)
    with attacked_server([repository, work / "models"], work=work) as started:
        warm_up(started)
        send_code(started, "prints", "pass")
        yield started


def test_twenty_megabytes_of_short_lines_delay_no_request(server):
    begin = len(server.log)
    with harmless(server, 48 << 20):
        for _ in range(2):
            assert send_code(server, "prints", "os.write(1, b'x\\n' * 5_000_000)").status == 200
        until(lambda: "of its output were dropped" in server.log[begin:], "the report")
    assert len(server.log) - begin < 4 << 20
    assert re.search(
        r"'prints_0' \(pid \d+\): \d+ lines \(\d+ bytes\) of its output were dropped: more than 1000 a second "
        r"\(--guest-log-rate\)",
        server.log[begin:],
    )


@pytest.mark.parametrize("name", ["a short end", "x"])
def test_an_error_of_twenty_megabytes_is_cut(server, name):
    begin = len(server.log)
    with harmless(server):
        reply = send_code(server, "prints", f"text = 'begin' + {name!r} * (20_000_000 // {len(name)}) + 'end'")
    assert reply.status == 500
    assert len(reply.body) < 70_000
    assert reply.error.startswith("begin")
    assert reply.error.endswith("end")
    assert "characters are left out here" in reply.error
    assert len(server.log) - begin < 200_000


def test_an_error_of_twenty_megabytes_that_is_raised_is_cut(server):
    begin = len(server.log)
    reply = send_code(server, "prints", "raise ValueError('x' * 20_000_000)")
    assert reply.status == 500
    assert "characters are left out here" in reply.error
    assert len(reply.body) < 70_000
    assert len(server.log) - begin < 400_000


@pytest.mark.parametrize(("size", "kind"), [(200 << 20, 16), (17 << 20, 6), (0xFFFFFFFF, 7), (65 << 20, 15)])
def test_a_guest_that_sends_a_huge_message_is_ended_and_restarted(server, size, kind):
    with harmless(server, 48 << 20):
        reply = send_code(server, "dies", _FRAME.format(size=size, kind=kind))
    assert reply.status == 500
    assert "was killed: it broke the protocol: a message of" in reply.error
    assert "is longer than any the protocol has" in reply.error
    assert send_code(server, "dies", "pass").status == 200
    server.wait_health("ready")

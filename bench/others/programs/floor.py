"""The floor: the least that a server of two processes can do for sums and differences of two FP32 tensors.

As naiad, it reads requests of the KServe v2 protocol in JSON or binary, copies the inputs into shared memory, has a
second process compute, and copies the outputs into the response. It checks nothing, counts nothing, knows one model,
and its model gets arrays instead of requests. Run as `floor.py PORT`.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import struct
import sys
from typing import cast

import httptools
import numpy as np
import orjson
import uvloop

SLOT = 8 << 20
"""Bytes for the inputs and outputs of a request."""
SLOTS = 64
MESSAGE = struct.Struct("<II")
"""The number of a slot, and the bytes of each of its tensors."""


def compute(link: socket.socket, memory: mmap.mmap) -> None:
    """The second process: computes what it is told of, until the link ends."""
    while message := link.recv(MESSAGE.size):
        slot, size = MESSAGE.unpack(message)
        a, b, total, difference = (
            np.frombuffer(memory, "<f4", size // 4, slot * SLOT + number * size) for number in range(4)
        )
        total[:] = a + b
        difference[:] = a - b
        link.send(message)


class Computer:
    """The way to the second process: slots in shared memory, and one socket pair."""

    def __init__(self, link: socket.socket, memory: mmap.mmap) -> None:
        self.view = memoryview(memory)
        self.free = list(range(SLOTS))
        self.waiting: dict[int, Client] = {}
        self.link = link
        asyncio.get_running_loop().add_reader(link, self._on_readable)

    def start(self, slot: int, size: int, client: Client) -> None:
        self.waiting[slot] = client
        self.link.send(MESSAGE.pack(slot, size))

    def _on_readable(self) -> None:
        slot, size = MESSAGE.unpack(self.link.recv(MESSAGE.size))
        start = slot * SLOT + 2 * size
        self.waiting.pop(slot).respond(self.view[start : start + size], self.view[start + size : start + 2 * size])
        self.free.append(slot)


class Client(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer
        self._parser = httptools.HttpRequestParser(self)
        self._head_size = 0
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is a class of its own

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"inference-header-content-length":
            self._head_size = int(value)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, size = [], self._head_size
        head = orjson.loads(body[:size] if size else body)
        self._shape = head["inputs"][0]["shape"]
        self._is_binary, self._head_size = bool(size), 0
        slot = self._computer.free.pop()
        view, start = self._computer.view, slot * SLOT
        if size:
            data = memoryview(body)[size:]
            view[start : start + len(data)] = data
            self._computer.start(slot, len(data) // 2, self)
            return
        a, b = (np.array(tensor["data"], "<f4") for tensor in head["inputs"])
        view[start : start + 2 * a.nbytes] = a.tobytes() + b.tobytes()
        self._computer.start(slot, a.nbytes, self)

    def respond(self, total: memoryview, difference: memoryview) -> None:
        tensors = {"OUTPUT0": total, "OUTPUT1": difference}
        outputs: list[dict[str, object]] = [
            {"name": name, "datatype": "FP32", "shape": self._shape} for name in tensors
        ]
        for output, data in zip(outputs, tensors.values(), strict=True):
            if self._is_binary:
                output["parameters"] = {"binary_data_size": len(data)}
            else:
                output["data"] = np.frombuffer(data, "<f4")
        document = {"model_name": "add_sub", "model_version": "1", "outputs": outputs}
        head = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        parts = [head, total, difference] if self._is_binary else [head]
        kind = b"Inference-Header-Content-Length: %d\r\n" % len(head) if self._is_binary else b""
        start = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n" % (kind, sum(map(len, parts)))
        self._transport.write(b"".join((start, *parts)))


async def serve(port: int, link: socket.socket, memory: mmap.mmap) -> None:
    """Serve until the process is ended."""
    loop, computer = asyncio.get_running_loop(), Computer(link, memory)
    server = await loop.create_server(lambda: Client(computer), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    """Start the second process, and serve."""
    descriptor = os.memfd_create("floor")
    os.ftruncate(descriptor, SLOT * SLOTS)
    memory = mmap.mmap(descriptor, SLOT * SLOTS)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        compute(theirs, memory)
        os._exit(0)
    theirs.close()
    uvloop.run(serve(int(sys.argv[1]), ours, memory))


if __name__ == "__main__":
    main()

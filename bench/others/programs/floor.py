"""The floor: the least that a server of two processes can do for sums and differences of two FP32 tensors.

As naiad, it reads requests of the KServe v2 protocol in JSON or binary, copies the inputs into shared memory, has a
second process compute, and copies the outputs into the response. It checks nothing, counts nothing, knows one model,
and its model gets arrays instead of requests. Run as `floor.py PORT [grpc]`; over gRPC it assumes that every stream is
a call of ModelInfer, whose head it does not read.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import struct
import sys
from typing import Protocol, cast

import httptools
import numpy as np
import orjson
import uvloop

from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest, ModelInferResponse

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
        self.waiting: dict[int, Asker] = {}
        self.link = link
        asyncio.get_running_loop().add_reader(link, self._on_readable)

    def start(self, slot: int, size: int, client: Asker) -> None:
        self.waiting[slot] = client
        self.link.send(MESSAGE.pack(slot, size))

    def _on_readable(self) -> None:
        slot, size = MESSAGE.unpack(self.link.recv(MESSAGE.size))
        start = slot * SLOT + 2 * size
        self.waiting.pop(slot).respond(self.view[start : start + size], self.view[start + size : start + 2 * size])
        self.free.append(slot)


class Asker(Protocol):
    """Who gets the result."""

    def respond(self, total: memoryview, difference: memoryview) -> None:
        """Send the response."""


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


DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
"""Types of frames (RFC 9113, section 6)."""
ACK = END_STREAM = 1
END_HEADERS = 4
FRAME = struct.Struct(">BHBBL")
"""The head of a frame: its length, in two parts, its type, its flags and its stream."""
PREFACE_SIZE = 24
WINDOW = (1 << 31) - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """The bytes of a frame."""
    return FRAME.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def field(name: bytes, value: bytes) -> bytes:
    """A header field as a literal without an index (RFC 7541, section 6.2.2)."""
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)


HEAD = b"\x88" + field(b"content-type", b"application/grpc")
TRAILERS = field(b"grpc-status", b"0")
OPENING = frame(SETTINGS, 0, 0, struct.pack(">HL", 4, WINDOW)) + frame(
    WINDOW_UPDATE, 0, 0, struct.pack(">L", WINDOW - 0xFFFF)
)
"""Windows that no load fills; 4 is SETTINGS_INITIAL_WINDOW_SIZE."""


class Call:
    """A call of ModelInfer."""

    def __init__(self, message: bytes, stream: int, transport: asyncio.Transport, computer: Computer) -> None:
        self._transport, self._stream = transport, stream
        self._request = request = ModelInferRequest.FromString(message)
        slot = computer.free.pop()
        data = b"".join(request.raw_input_contents)
        computer.view[slot * SLOT : slot * SLOT + len(data)] = data
        computer.start(slot, len(data) // 2, self)

    def respond(self, total: memoryview, difference: memoryview) -> None:
        response = ModelInferResponse(model_name="add_sub", model_version="1")
        for name in ("OUTPUT0", "OUTPUT1"):
            response.outputs.add(name=name, datatype="FP32", shape=self._request.inputs[0].shape)
        response.raw_output_contents.extend((bytes(total), bytes(difference)))
        message = response.SerializeToString()
        stream = self._stream
        parts = (
            frame(HEADERS, END_HEADERS, stream, HEAD),
            frame(DATA, 0, stream, struct.pack(">BL", 0, len(message)) + message),
            frame(HEADERS, END_HEADERS | END_STREAM, stream, TRAILERS),
        )
        self._transport.write(b"".join(parts))


class GrpcClient(asyncio.Protocol):
    """One connection of HTTP/2."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer
        self._received = bytearray()
        self._skipped = PREFACE_SIZE
        self._messages: dict[int, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(OPENING)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = self._skipped
        while len(received) >= at + FRAME.size:
            high, low, kind, flags, stream = FRAME.unpack_from(received, at)
            start, end = at + FRAME.size, at + FRAME.size + (high << 16) + low
            if len(received) < end:
                break
            self._on_frame(kind, flags, stream, bytes(received[start:end]))
            at = end
        self._skipped = max(0, at - len(received))
        del received[:at]

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            message = self._messages.pop(stream, b"") + payload
            if flags & END_STREAM:
                Call(message[5:], stream, self._transport, self._computer)
            else:
                self._messages[stream] = message
        elif kind in {SETTINGS, PING} and not flags & ACK:
            self._transport.write(frame(kind, ACK, 0, payload if kind == PING else b""))


async def serve(port: int, protocol: type[Client | GrpcClient], link: socket.socket, memory: mmap.mmap) -> None:
    """Serve until the process is ended."""
    loop, computer = asyncio.get_running_loop(), Computer(link, memory)
    server = await loop.create_server(lambda: protocol(computer), "127.0.0.1", port)
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
    uvloop.run(serve(int(sys.argv[1]), GrpcClient if sys.argv[2:] == ["grpc"] else Client, ours, memory))


if __name__ == "__main__":
    main()

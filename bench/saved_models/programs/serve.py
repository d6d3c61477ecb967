"""The least that a server can do: `serve.py FILE SHAPE THREADS PORT` answers each request with what the model returns.

It reads no input, checks nothing, serves one model and isolates nothing. What it takes beside a script is the price of
a socket and of the pause between two calls on this machine, which no server over HTTP goes below.
"""

import asyncio
import json
import sys

import numpy as np
import onnxruntime

path, shape, threads, port = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
# As in the backend: threads that spin after a run would take the processors from the socket.
options.add_session_config_entry("session.force_spinning_stop", "1")
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
given = {"X": np.zeros(shape, "f")}


class Connection(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.read = transport, b""

    def data_received(self, data):
        self.read += data
        head, found, body = self.read.partition(b"\r\n\r\n")
        fields = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in fields if line.startswith(b"content-length:")), 0)
        if found and len(body) >= length:
            self.read = b""
            answer = session.run(["Y"], given)[0].tobytes()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)


async def main():
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


asyncio.run(main())

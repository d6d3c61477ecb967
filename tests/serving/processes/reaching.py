"""Connections to each of the processes of a server, to which they are dealt."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator

from serving.frontends.killing import serving
from support.server import HOST, ServerProcess

_MOST = 256


@contextlib.contextmanager
def connection_of_each(server: ServerProcess) -> Iterator[dict[int, http.client.HTTPConnection]]:
    """A connection to each process, by its id."""

    def owner(connection: http.client.HTTPConnection) -> int | None:
        port = connection.sock.getsockname()[1]
        for process in serving(server):
            if any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp")):
                return process.pid
        return None

    with contextlib.ExitStack() as stack:
        found: dict[int | None, http.client.HTTPConnection] = {}
        wanted = {each.pid for each in serving(server)}
        for _ in range(_MOST):
            connection = http.client.HTTPConnection(HOST, server.http_port, timeout=60)
            stack.enter_context(contextlib.closing(connection))
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
            found.setdefault(owner(connection), connection)
            if found.keys() >= wanted:
                break
        yield {pid: found[pid] for pid in wanted}

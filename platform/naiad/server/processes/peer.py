"""The link between two processes beside the coordinator: each sends the other requests to its replicas."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from naiad.core.errors import NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.processes.link import Link, Payload
from naiad.server.processes.request_link import RequestLink
from naiad.server.processes.request_session import REQUEST_KINDS, OwnModels, RequestSession


def exited_error(number: int) -> NotReadyError:
    """What becomes of a request that a process had when it exited."""
    return NotReadyError(
        f"cannot finish the request: process {number} of the server, which had it, has exited; send it again"
    )


class Peer:
    """Another process: requests to its replicas, and its requests to replicas here."""

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        models: OwnModels,
        memory: LinkMemory,
        send_elsewhere: Callable[[OpenRequest, int], None],
        on_end: Callable[[Peer], None],
    ) -> None:
        """Use a link over *sock*; other processes share *memory* with guests here; *on_end* is called at its exit."""
        self.requests = RequestLink(send_elsewhere=send_elsewhere)
        self.session = RequestSession(models, memory)
        self._number = number
        self._on_end = on_end
        self._link = Link(
            sock, asyncio.get_running_loop(), self._on_frame, self._on_link_end, self.requests.on_received
        )
        self.requests.connect(self._link)
        self.session.connect(self._link)

    def _on_frame(self, kind: int, payload: Payload) -> None:
        if kind in REQUEST_KINDS:
            self.session.on_frame(kind, payload)
        else:
            self.requests.on_frame(kind, payload)

    def _on_link_end(self) -> None:
        self._on_end(self)
        self.close()

    def close(self) -> None:
        """The process has exited, or another one takes its place."""
        self._link.close()
        self.session.close()
        self.requests.close(exited_error(self._number))

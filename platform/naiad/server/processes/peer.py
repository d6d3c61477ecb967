"""Another process of the server, at the other end of a link: requests and calls in both directions."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, MutableMapping

from naiad.engine.open_request import OpenRequest
from naiad.frontends.regions import RegionPart
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.processes.calls import ProcessExitedError, RemoteCalls, Service
from naiad.server.processes.link import Link, Payload
from naiad.server.processes.request_link import KnownRoute, RequestLink
from naiad.server.processes.request_session import OwnModels, RequestSession

logger = logging.getLogger("naiad.frontends")


def exited_error(number: int) -> ProcessExitedError:
    """What becomes of a request that a process had when it exited."""
    return ProcessExitedError(
        f"cannot finish the request: process {number} of the server, which had it, has exited; send it again"
    )


class Peer:
    """Another process."""

    def __init__(
        self,
        sock: socket.socket,
        on_end: Callable[[], None],
        models: OwnModels,
        memory: LinkMemory,
        services: MutableMapping[str, Service],
        exited: ProcessExitedError,
        send_elsewhere: Callable[[OpenRequest], None],
        *,
        is_urgent: Callable[[int, Payload], bool] = lambda *_: True,
        find_route: Callable[[OpenRequest], KnownRoute] | None = None,
        tracer: Tracer | None = None,
        find_part: Callable[[str, int, int], RegionPart] | None = None,
    ) -> None:
        """*models* are those of this process, whose guests share *memory*; for the others, see what they are for.

        The link is over *sock*. *services* is what the other process may call here; those of requests are added.
        """
        self.link = link = Link(sock, asyncio.get_running_loop(), self.on_frame, on_end, is_urgent)
        self.calls = calls = RemoteCalls(link, services, exited)
        self.requests = RequestLink(link, calls, send_elsewhere, find_route)  # to models there
        self.session = RequestSession(link, calls, models, memory, tracer, find_part)  # its requests to models here
        self._exited = exited
        self._handlers: Mapping[int, Callable[[Payload], None]] = {
            **self.requests.handlers,
            **self.session.handlers,
            **self.calls.handlers,
        }

    def on_frame(self, kind: int, payload: Payload) -> None:
        try:
            self._handlers[kind](payload)
        except Exception as error:  # the frames after this one must still be handled
            logger.exception("cannot handle a message of another process")
            self.session.reject_unreadable(kind, payload, error)

    def close(self) -> None:
        """The process has exited, or another one takes its place: free what it had, and end its requests and calls."""
        self.link.close()
        self.session.close()
        self.requests.close(self._exited)
        self.calls.close()

"""Connections dealt to the processes of a server: the coordinator accepts, and passes each to the one with the fewest.

A socket pair leads to each process, for packets with a descriptor, the name of a listener and the client's address: a
process that has no free descriptor loses one of these, and none of those of its link. It reports the addresses of
connections that have ended. So the coordinator knows all of them, and its limits on connections hold for the whole
server. It serves those itself that a process cannot take.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from naiad.frontends.listening import Acceptor
from naiad.frontends.open_connections import ConnectionCount
from naiad.frontends.tls import listening_options

logger = logging.getLogger("naiad.connections")

_AT_ONCE = 64  # connections that are accepted or received in one turn of the loop
_PACKET = 1 << 16
# How long nothing is accepted after that has failed: the connection that waits would make it fail again at once.
_PAUSE_SECONDS = 1.0
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class _Listener(NamedTuple):
    connect: Callable[[], asyncio.BaseProtocol]
    tls: ssl.SSLContext | None


class _Serving:
    """Serves connections that another one, or this process, has accepted."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many are not registered yet: with TLS, their handshakes are in progress."""
        return len(self._tasks)

    def serve(
        self, listener: _Listener, connection: socket.socket, on_failed: Callable[[], None] = lambda: None
    ) -> None:
        """Serve a connection; *on_failed* is called if it ends before it was made."""
        task = self._loop.create_task(self._serve(listener, connection, on_failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, listener: _Listener, connection: socket.socket, on_failed: Callable[[], None]) -> None:
        try:
            await self._loop.connect_accepted_socket(listener.connect, connection, **listening_options(listener.tls))
        except OSError:  # the client has disconnected, or its TLS handshake failed
            connection.close()
            on_failed()


@dataclass(slots=True, eq=False)
class _DealtProcess:
    link: socket.socket  # this end of its socket pair
    is_ready: bool = False  # whether it serves
    open: Counter[str] = field(default_factory=Counter)  # its connections, by address
    count: int = 0


class ConnectionDealer:
    """The coordinator's side."""

    def __init__(self) -> None:
        self.count = ConnectionCount()  # of the connections of this process, and of those of the others
        self._serving = _Serving()
        self._processes: dict[int, _DealtProcess] = {}

    def use(self, count: ConnectionCount) -> None:
        """Have the limits of *count* hold for all processes."""
        self.count = count

    def listener(self, name: str) -> Acceptor:
        return _AcceptedHere(name, self)

    def join(self, number: int) -> socket.socket:
        """A new process; the end of its socket pair for it. It gets connections once `begin` is called."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        self._processes[number] = _DealtProcess(own)
        return other

    def begin(self, number: int) -> None:
        if number in self._processes:
            self._processes[number].is_ready = True

    def leave(self, number: int) -> None:
        process = self._processes.pop(number, None)
        if process is not None:
            process.link.close()
            for address in process.open.elements():
                self.count.leave_elsewhere(address)

    def stop(self) -> None:
        """Serve all further connections here."""
        for process in self._processes.values():
            process.is_ready = False

    def close(self) -> None:
        for number in list(self._processes):
            self.leave(number)

    def deal(self, name: str, listener: _Listener, connection: socket.socket, address: str) -> None:
        """Pass a connection to the process with the fewest. One that is refused is told so here."""
        address = self.count.address(address)
        process, fewest = None, self.count.open + len(self._serving)
        for each in self._processes.values():
            if each.is_ready and each.count < fewest:
                process, fewest = each, each.count
        if process is None or not self.count.may_enter(address):
            self._serving.serve(listener, connection)
            return
        try:
            socket.send_fds(process.link, [f"{name} {address}".encode()], [connection.fileno()])
        except OSError:  # it is busy, or has exited
            self._serving.serve(listener, connection)
            return
        connection.close()
        self.count.enter_elsewhere(address)
        process.open[address] += 1
        process.count += 1

    def on_ended(self, number: int, address: str) -> None:
        """A process reports that a connection has ended."""
        process = self._processes.get(number)
        if process is not None and process.open[address]:
            process.open[address] -= 1
            process.count -= 1
            self.count.leave_elsewhere(address)


class _AcceptedHere:
    """Accepts the connections of a listener, and deals them; see `Acceptor`."""

    has_port = True

    def __init__(self, name: str, dealer: ConnectionDealer) -> None:
        self._name = name
        self._dealer = dealer
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._pause: asyncio.TimerHandle | None = None

    def begin(
        self,
        sockets: Sequence[socket.socket],
        connect: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._sockets += sockets
        self._listener = _Listener(connect, tls)
        self._resume()

    def end(self) -> None:
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        self._sockets.clear()

    def _resume(self) -> None:
        self._pause = None
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = listening.accept()
            except OSError as problem:
                if problem.errno in _EXHAUSTED and self._pause is None:
                    logger.warning("cannot accept connections: %s; tried again after %g s", problem, _PAUSE_SECONDS)
                    for each in self._sockets:
                        self._loop.remove_reader(each)
                    self._pause = self._loop.call_later(_PAUSE_SECONDS, self._resume)
                return
            address = str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else ""
            self._dealer.deal(self._name, self._listener, connection, address)


class _AcceptedElsewhere:
    """Serves the connections of a listener that the coordinator has accepted; see `Acceptor`."""

    has_port = False

    def __init__(self, name: str, receiver: ConnectionReceiver) -> None:
        self._name = name
        self._receiver = receiver

    def begin(
        self,
        sockets: Sequence[socket.socket],  # noqa: ARG002 - the protocol's
        connect: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._receiver.add(self._name, _Listener(connect, tls))

    def end(self) -> None:
        self._receiver.receive()  # those that were on their way: no more are sent


class ConnectionReceiver:
    """The side of a process beside the coordinator."""

    def __init__(self, link: socket.socket, report_ended: Callable[[str], None]) -> None:
        """Serve what comes over *link*; *report_ended* gets the address of each connection that has ended."""
        link.setblocking(False)
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._serving = _Serving()
        self._listeners: dict[str, _Listener] = {}
        self._addresses: dict[int, str] = {}  # of connections that are being made, by descriptor
        self._end = report_ended
        self._loop.add_reader(link, self.receive)

    def use(self, count: ConnectionCount) -> None:
        """Have the coordinator's limits hold, which knows the addresses of the connections of *count*."""
        count.defer(self._address_of, self._end)

    def listener(self, name: str) -> Acceptor:
        return _AcceptedElsewhere(name, self)

    def add(self, name: str, listener: _Listener) -> None:
        self._listeners[name] = listener

    def receive(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._link, _PACKET, 1)
            except OSError:
                return
            if not packet:  # the coordinator has exited, which its link shows
                self._loop.remove_reader(self._link)
                return
            name, _, address = packet.decode().partition(" ")
            if not descriptors or name not in self._listeners:  # no file descriptor was free: it is closed
                for descriptor in descriptors:
                    os.close(descriptor)
                self._end(address)
                continue
            connection = socket.socket(fileno=descriptors[0])
            self._addresses[descriptors[0]] = address
            self._serving.serve(self._listeners[name], connection, partial(self._fail, descriptors[0]))

    def _fail(self, descriptor: int) -> None:
        address = self._addresses.pop(descriptor, None)
        if address is not None:
            self._end(address)

    def _address_of(self, transport: asyncio.Transport) -> str:
        return self._addresses.pop(transport.get_extra_info("socket").fileno(), "")

    def close(self) -> None:
        self._loop.remove_reader(self._link)
        self._link.close()

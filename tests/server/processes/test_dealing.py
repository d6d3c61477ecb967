"""Connections are dealt evenly to the processes of a server, and limits on them hold for all together."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import pytest

from naiad.frontends.open_connections import ConnectionCount, OpenConnections
from naiad.server.processes import dealing
from naiad.server.processes.dealing import ConnectionDealer, ConnectionReceiver


class Connection(asyncio.Protocol):
    """A connection that sends the number of its process, or why it is refused, and then what it gets."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        refusal = self._process.connections.add(self, transport)
        transport.write(refusal.encode() or str(self._process.number).encode())

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._process.connections.discard(self)


class Process:
    """One process of the server, in this one."""

    def __init__(self, number: int, deals: ConnectionDealer | ConnectionReceiver, count: ConnectionCount) -> None:
        self.number, self.deals, self.count = number, cast("Any", deals), count
        self.connections: OpenConnections[Connection] = OpenConnections(count)
        deals.use(count)
        self.acceptor: Any = deals.listener("http")

    def begin(self, *sockets: socket.socket) -> None:
        self.acceptor.begin(sockets, lambda: Connection(self), None)


class Server:
    """A dealer, receivers, and clients of theirs."""

    def __init__(self, processes: int, **limits: int) -> None:
        self.dealer = ConnectionDealer()
        self.first = Process(0, self.dealer, ConnectionCount(**limits))
        self.others: list[Process] = []
        for number in range(1, processes):
            self.add(number)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        self.first.begin(listening)
        self.clients: list[asyncio.StreamWriter] = []

    def add(self, number: int) -> None:
        receiver = ConnectionReceiver(self.dealer.join(number), partial(self.dealer.on_ended, number))
        process = Process(number, receiver, ConnectionCount())
        process.begin()
        self.others.append(process)
        self.dealer.begin(number)

    async def connect(self) -> str:
        """What a new connection says first."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(writer)
        return (await reader.read(1000)).decode()

    async def close(self, *numbers: int) -> None:
        """Close these clients' connections, and wait until the dealer knows."""
        before = self.open
        for number in numbers:
            self.clients[number].close()
        while self.open > before - len(numbers):
            await asyncio.sleep(0)

    @property
    def open(self) -> int:
        count = self.dealer.count
        return count.open + count._elsewhere


@asynccontextmanager
async def serving(processes: int, **limits: int) -> AsyncIterator[Server]:
    server = Server(processes, **limits)
    try:
        yield server
    finally:
        for writer in server.clients:
            writer.close()
        while any(each.connections for each in (server.first, *server.others)):
            await asyncio.sleep(0)
        server.first.acceptor.end()
        for each in server.others:
            each.deals.close()
        server.dealer.close()


async def test_each_connection_goes_to_the_process_with_the_fewest(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(3) as server:
        found = await asyncio.gather(*(server.connect() for _ in range(15)))
        assert sorted(found) == ["0"] * 5 + ["1"] * 5 + ["2"] * 5
        in_second = [number for number, each in enumerate(found) if each == "1"]
        await server.close(*in_second[:3])
        assert [await server.connect() for _ in range(3)] == ["1"] * 3
        assert "cannot accept" not in caplog.text, "nothing was exhausted"


async def test_the_total_is_that_of_all_processes() -> None:
    async with serving(2, total=4) as server:
        assert sorted([await server.connect() for _ in range(4)]) == ["0", "0", "1", "1"]
        for _ in range(3):
            assert (await server.connect()).startswith("cannot accept the connection: 4 are open, the limit of")
        await server.close(1)
        assert await server.connect() == "1"
        assert (await server.connect()).startswith("cannot accept the connection: 4 are open")
        assert [each.count.open for each in (server.first, *server.others)] == [2, 2]


async def test_an_address_has_its_limit_in_all_processes() -> None:
    async with serving(2, per_address=3) as server:
        assert sorted([await server.connect() for _ in range(3)]) == ["0", "0", "1"]
        assert (await server.connect()).startswith("cannot accept the connection: 3 are open from 127.0.0.1")
        await server.close(1)
        assert await server.connect() == "1"


async def test_a_process_that_has_ended_has_no_connections_and_gets_none() -> None:
    async with serving(2, total=4, per_address=4) as server:
        assert sorted([await server.connect() for _ in range(4)]) == ["0", "0", "1", "1"]
        server.dealer.leave(1)
        server.dealer.leave(1)
        assert server.open == 2
        assert [await server.connect() for _ in range(2)] == ["0", "0"]
        server.dealer.begin(1)  # it is not there any more
        server.add(1)
        await server.close(0, 4)
        assert [await server.connect() for _ in range(2)] == ["1", "1"]
        await server.close(6)
        server.dealer.leave(1)
        assert server.open == 2
        for _ in range(3):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert not any(loop.remove_reader(each.deals._link) for each in server.others), "nothing comes there any more"


async def test_what_has_ended_is_read_no_more_and_its_connections_are_forgotten() -> None:
    async with serving(2) as server:
        assert [await server.connect() for _ in range(2)] == ["0", "1"]
        receiver = server.others[0].deals
        ends = [server.first.acceptor._sockets[0].fileno(), receiver._link.fileno()]
        server.first.acceptor.end()
        receiver.close()
        receiver.close = lambda: None  # it is closed
        assert not any(asyncio.get_running_loop().remove_reader(each) for each in ends)
        assert receiver._link.fileno() == -1
        with pytest.raises(ConnectionRefusedError):
            await server.connect()
        server.dealer.close()
        assert server.open == 1


async def test_a_process_gets_connections_once_it_serves_and_until_the_server_stops() -> None:
    async with serving(1) as server:
        end = server.dealer.join(1)
        assert [await server.connect() for _ in range(2)] == ["0", "0"]
        process = Process(1, ConnectionReceiver(end, partial(server.dealer.on_ended, 1)), ConnectionCount())
        process.begin()
        server.others.append(process)
        server.dealer.begin(1)
        assert await server.connect() == "1"
        server.dealer.stop()
        assert [await server.connect() for _ in range(3)] == ["0"] * 3


async def test_connections_that_a_process_cannot_take_are_served_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BlockingIOError

    async with serving(2) as server:
        assert await server.connect() == "0"
        monkeypatch.setattr("naiad.server.processes.dealing.socket.send_fds", refuse)
        assert [await server.connect() for _ in range(2)] == ["0", "0"]
        assert server.open == 3


async def test_a_process_that_does_not_read_delays_nobody() -> None:
    async with serving(1) as server:
        end = server.dealer.join(1)
        server.dealer.begin(1)
        link = server.dealer._processes[1].link
        assert not link.getblocking()
        with suppress(BlockingIOError):
            while True:
                link.send(bytes(1 << 12))
        assert [await server.connect() for _ in range(2)] == ["0", "0"]
        end.close()


async def test_a_connection_whose_handshake_fails_elsewhere_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ConnectionResetError

    async with serving(2, per_address=9) as server:
        assert await server.connect() == "0"
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "connect_accepted_socket", fail)
            assert await server.connect() == ""
        while server.open > 1:
            await asyncio.sleep(0)
        assert not server.others[0].deals._addresses
        assert [await server.connect() for _ in range(2)] == ["1", "0"]


async def test_a_connection_that_cannot_be_served_elsewhere_does_not_count() -> None:
    async with serving(2, per_address=9) as server:
        server.others[0].deals._listeners.clear()
        assert await server.connect() == "0"
        assert await server.connect() == ""  # it is closed
        while server.open > 1:
            await asyncio.sleep(0)


async def test_connections_on_their_way_are_served_by_a_listener_that_ends() -> None:
    async with serving(2) as server:
        assert await server.connect() == "0"
        server.others[0].deals._loop.remove_reader(server.others[0].deals._link)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        server.clients.append(writer)
        while server.open < 2:
            await asyncio.sleep(0)
        server.others[0].acceptor.end()
        while not server.others[0].connections:
            await asyncio.sleep(0)


async def test_nothing_is_accepted_for_a_moment_once_no_descriptor_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dealing, "_PAUSE_SECONDS", 0.01)
    async with serving(1) as server:
        accepting = server.first.acceptor
        own = accepting._sockets[0]

        class Exhausted:
            def __getattr__(self, name: str) -> Any:
                return getattr(own, name)

            def accept(self) -> Any:
                accepting._sockets[0] = own
                raise OSError(errno.EMFILE, "Too many open files")

        for _ in range(2):
            caplog.clear()
            exhausted: Any = Exhausted()
            accepting._accept(exhausted)
            accepting._accept(exhausted)
            assert caplog.text.count("cannot accept connections: [Errno 24] Too many open files") == 1
            assert not asyncio.get_running_loop().remove_reader(own), "it is not read meanwhile"
            assert await server.connect() == "0"

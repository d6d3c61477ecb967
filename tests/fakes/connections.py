"""A transport that records what is done to it, and a loop whose turns and timers a test moves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Transport:
    """Stands in for `asyncio.Transport`.

    Attributes:
        address: The client's address.
        socket: Its socket, if it has one.
        protocol: The protocol that TLS has agreed on; empty without TLS.
        written: All bytes, in *writes* calls.
        unsent: Bytes that the client has not read.
        limits: The numbers of these at which the protocol is to be paused and resumed.
        ends: How its ends were closed, in order: "write_eof", "close", "abort".
    """

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.socket: socket.socket | None = None
        self.protocol = ""
        self.written = b""
        self.writes = 0
        self.unsent = 0
        self.limits: tuple[int, int] = (0, 0)
        self.is_reading = True
        self.ends: list[str] = []

    @property
    def is_closed(self) -> bool:
        return "close" in self.ends

    @property
    def is_aborted(self) -> bool:
        return "abort" in self.ends

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.written += data

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.write(b"".join(parts))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object" and self.protocol:
            return type("Ssl", (), {"selected_alpn_protocol": lambda _: self.protocol})()
        return {"peername": (self.address, 1234), "socket": self.socket}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int, low: int = 0) -> None:
        self.limits = high, low

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def can_write_eof(self) -> bool:
        return not self.protocol

    def write_eof(self) -> None:
        self.ends.append("write_eof")

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Writer(Protocol):
    """What writes to a transport."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class SlowTransport(Transport):
    """A transport whose client reads when a test says so. It pauses its protocol as asyncio does.

    Attributes:
        room: Bytes that the kernel takes before the client reads.
        writer: What it pauses; to be set before anything is written.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.paused: Writer | None = None
        self.writer: Writer | None = None

    def write(self, data: bytes) -> None:
        assert not self.is_aborted, "transports of uvloop take that for an error"
        super().write(data)
        self.unsent += len(data)
        self._take(pauses=True)

    def read(self, size: int) -> None:
        """The client reads *size* bytes."""
        self.room += size
        self._take(pauses=False)

    def set_write_buffer_limits(self, high: int, low: int = 0) -> None:
        super().set_write_buffer_limits(high, low)
        self._take(pauses=True)

    def _take(self, *, pauses: bool) -> None:
        taken = min(self.room, self.unsent)
        self.room -= taken
        self.unsent -= taken
        high, low = self.limits
        if pauses and self.unsent > high and self.paused is None and self.writer is not None:
            self.paused = self.writer
            self.paused.pause_writing()
        elif not pauses and self.unsent <= low and self.paused is not None:
            paused, self.paused = self.paused, None
            paused.resume_writing()


class Loop:
    """Keeps what is scheduled until a test lets it run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.ready: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Loop:
        self.timers.append((self.now + delay, callback))
        return self

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def cancel(self) -> None:
        """Cancel all timers: this is their handle."""
        self.timers.clear()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [callback for when, callback in self.timers if when <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for callback in due:
            callback()
        self.run_ready()

    def run_turn(self) -> None:
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()

    def run_ready(self) -> None:
        while self.ready:
            self.run_turn()

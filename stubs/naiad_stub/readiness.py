"""Replies to readiness queries, also while `execute` runs.

The model's `is_ready` runs on a separate thread, which reads a separate socket. Only models that define `is_ready` have
that thread. If `is_ready` is a coroutine, it runs on the model's event loop if there is one, since it may await objects
of that loop.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from naiad_stub import loader, wire
from naiad_stub.messages import READINESS_QUERIES, Readiness, pack, unpack
from naiad_stub.primitives import start_thread

if TYPE_CHECKING:  # expensive to import, and few models need it
    import asyncio

_RECEIVE = 4096


class ReadinessThread:
    """Waits for queries.

    Args:
        sock: The readiness socket.
        is_ready: The model's method.
        running_loop: Returns the model's event loop; None without one.
    """

    def __init__(
        self,
        sock: socket.socket,
        is_ready: Callable[[], Any],
        running_loop: Callable[[], Optional[asyncio.AbstractEventLoop]],
    ) -> None:
        sock.settimeout(None)  # the model may have set another default
        self._socket = sock
        self._is_ready = is_ready
        self._running_loop = running_loop
        os.register_at_fork(after_in_child=sock.close)

    def start(self) -> None:
        """Start the thread."""
        start_thread(self._run)

    def _run(self) -> None:
        reader = wire.FrameReader()
        try:
            while True:
                data = self._socket.recv(_RECEIVE)
                if not data:
                    return
                for kind, payload in reader.feed(data):
                    query = unpack(READINESS_QUERIES, kind, payload)
                    is_ready, problem = self._ask()
                    self._socket.sendall(pack(Readiness(query.number, is_ready, problem)))
        except OSError:  # the host has closed its end
            return

    def _ask(self) -> Tuple[bool, str]:
        """Whether the model is ready, and if not, why; empty where it gave no reason."""
        try:
            ready = self._is_ready()
            if hasattr(ready, "__await__"):
                ready = self._await(ready)
        except BaseException as error:  # noqa: BLE001 - models may raise anything, also SystemExit
            return False, loader.format_exception(error)[0]
        if not isinstance(ready, bool):
            return False, "is_ready() must return a boolean value"
        return ready, ""

    def _await(self, awaitable: Any) -> Any:
        import asyncio  # a model with a coroutine has imported it already

        async def run() -> Any:
            return await awaitable

        loop = self._running_loop()
        if loop is not None and loop.is_running():
            return asyncio.run_coroutine_threadsafe(run(), loop).result()
        return asyncio.run(run())

"""The log's settings, which clients change in one process and which then hold in all."""

from __future__ import annotations

from typing import Any, Protocol

from naiad.core.logs import ActiveLog, LogSettings
from naiad.server.processes.remote_engine import RemoteEngine


class OtherProcesses(Protocol):
    """The other processes, as the coordinator's log needs them."""

    def broadcast(self, name: str, *arguments: Any) -> None:
        """Call a service of all of them."""

    async def wait_sent(self) -> None:
        """Wait until they can know of it."""


class RemoteLog:
    """Implements `ServerLog` in a process other than the coordinator."""

    def __init__(self, log: ActiveLog, engine: RemoteEngine) -> None:
        self._log = log
        self._engine = engine
        self.is_verbose = log.is_verbose
        self.apply(engine.ask("log_settings"))  # this process may have been started after a change

    @property
    def settings(self) -> LogSettings:
        self.apply(self._engine.ask("log_settings"))
        return self._log.settings

    async def change(self, settings: LogSettings) -> None:
        await self._engine.call("change_log", settings)
        self.apply(settings)

    def reopen(self) -> None:
        self._log.reopen()

    def apply(self, settings: LogSettings) -> None:
        """Apply *settings* in this process."""
        self._log.apply(settings)
        self.is_verbose = self._log.is_verbose


class SharedLog:
    """Implements `ServerLog` in the coordinator: changes its own log, and has the other processes change theirs."""

    def __init__(self, log: ActiveLog, processes: OtherProcesses) -> None:
        self._log = log
        self._processes = processes
        self.is_verbose = log.is_verbose

    @property
    def settings(self) -> LogSettings:
        return self._log.settings

    async def change(self, settings: LogSettings) -> None:
        self._log.apply(settings)
        self.is_verbose = self._log.is_verbose
        self._processes.broadcast("log_settings", settings)
        await self._processes.wait_sent()

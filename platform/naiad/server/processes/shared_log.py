"""The log's settings, which clients change in one process and which then hold in all."""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.logs import ActiveLog, LogSettings
from naiad.server.processes.remote_engine import RemoteEngine


class RemoteLog:
    """Implements `ServerLog` in a frontend process.

    Attributes:
        is_verbose: See `ServerLog`.
    """

    def __init__(self, log: ActiveLog, engine: RemoteEngine) -> None:
        self._log = log
        self._engine = engine
        self.is_verbose = log.is_verbose
        self.apply(engine.ask("log_settings"))  # this process may have been started after a change

    @property
    def settings(self) -> LogSettings:
        """The current settings, which another process may have changed."""
        self.apply(self._engine.ask("log_settings"))
        return self._log.settings

    def change(self, settings: LogSettings) -> None:
        """Apply *settings* in all processes."""
        self._engine.ask("change_log", settings)
        self.apply(settings)

    def reopen(self) -> None:
        """Open this process's log file again by its name."""
        self._log.reopen()

    def apply(self, settings: LogSettings) -> None:
        """Apply *settings* in this process."""
        self._log.change(settings)
        self.is_verbose = self._log.is_verbose


class SharedLog:
    """The owner's side: changes the log of its own process, and has the others change theirs."""

    def __init__(self, log: ActiveLog, announce: Callable[[LogSettings], None]) -> None:
        self._log = log
        self._announce = announce

    def settings(self) -> LogSettings:
        """The current settings."""
        return self._log.settings

    def change(self, settings: LogSettings) -> None:
        """Apply *settings* in all processes."""
        self._log.change(settings)
        self._announce(settings)

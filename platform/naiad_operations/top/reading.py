"""Reads a running server: by the documents of its page if it has one, else by its index and its metrics."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from naiad.cli.http_reading import HttpStatusError, ServerAddress, UnreachableServerError
from naiad.core.errors import NaiadError
from naiad_operations.top.snapshot import (
    Scrape,
    ServerRow,
    Snapshot,
    parse_metrics,
    snapshot_of_documents,
    snapshot_of_metrics,
)

__all__ = ["TopReader"]

_METRICS_PORT = 8002
_NOT_FOUND, _UNAUTHORIZED, _FORBIDDEN = 404, 401, 403
_OFF = "start the server with --ui=true for p50, p95, pid and CPU"
_CLOSED = (
    "the server's page is not served here: start it with --ui-password=FILE or --ui-address for p50, p95, pid and CPU"
)
_OTHER_SERVER = "it is not a server of naiad or Triton"


class TopReader:
    """Reads snapshots of one server; *has_page* if its page is on, so that one reading has rates."""

    def __init__(self, server: ServerAddress, metrics: str = "") -> None:
        """Read nothing yet; *metrics* are by default on port 8002 of the same host."""
        self._server = server
        self._metrics = ServerAddress(metrics or self._default_metrics())
        self._before: Scrape | None = None
        self._advice = _OFF
        self.has_page = False

    def read(self) -> Snapshot:
        """The server now; rates from metrics are since the reading before."""
        try:
            state = self._server.get("/ui/data/state")
            guests = self._server.get("/ui/data/guests")
        except HttpStatusError as error:
            if error.status == _UNAUTHORIZED:
                raise NaiadError(f"{self._server.url}: its page needs a password; add --ui-password=FILE") from error
            self._advice = _CLOSED if error.status == _FORBIDDEN else _OFF
            return self._read_without_page()
        except ValueError:  # another program's page
            return self._read_without_page()
        self.has_page = True
        return snapshot_of_documents(self._server.url, state, guests)

    def _read_without_page(self) -> Snapshot:
        self.has_page = False
        try:
            metadata = self._server.get("/v2")
            index = self._server.post("/v2/repository/index", {})
            version = str(metadata["version"])
        except (HttpStatusError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, HttpStatusError) and error.status == _FORBIDDEN:
                raise NaiadError(f"{error.message}; give it with --header=NAME:VALUE") from error
            if isinstance(error, HttpStatusError) and error.status != _NOT_FOUND:
                raise
            raise UnreachableServerError(
                f"cannot read the server at {self._server.url}: {_OTHER_SERVER}; name the address of its HTTP port"
            ) from error
        now, note = self._scrape()
        row = ServerRow(
            url=self._server.url,
            source="metrics",
            version=version,
            state="ready" if self._is_ready() else "not ready",
            note=note,
        )
        before, self._before = self._before, now
        return snapshot_of_metrics(row, index, before, now)

    def _scrape(self) -> tuple[Scrape | None, str]:
        try:
            text = self._metrics.text("" if urlsplit(self._metrics.url).path else "/metrics")
        except NaiadError:
            return None, (
                f"no metrics at {self._metrics.url}, so only states are known; give their address with --metrics"
            )
        return parse_metrics(text, time.monotonic()), self._advice

    def _is_ready(self) -> bool:
        try:
            self._server.text("/v2/health/ready")
        except HttpStatusError:
            return False
        return True

    def _default_metrics(self) -> str:
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        return f"http://{host}:{_METRICS_PORT}"

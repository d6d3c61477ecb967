"""The servers of an application on Ray, for its clients; none of it needs Ray."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from naiad.core.errors import DeploymentError
from naiad_operations.ray.directory import LISTING, REPORT_SECONDS

_SECONDS = 10


class ServerList:
    """The list of ready servers, read again at most once a second. All methods may be called from any thread.

    Args:
        url: URL of Serve's HTTP port, with the prefix of the application's route: `http://127.0.0.1:8000`.
        port: Name of the port whose addresses are wanted: `http`, `grpc`, `openai` or `metrics`.

    Raises:
        DeploymentError: If *url* is not a URL of HTTP.
    """

    def __init__(self, url: str, port: str = "http") -> None:
        if urlsplit(url).scheme not in {"http", "https"}:
            raise DeploymentError(f"cannot list servers of '{url}': expected a URL, such as http://127.0.0.1:8000")
        self._url = url.rstrip("/") + LISTING
        self._port = port
        self._lock = threading.Lock()
        self._servers: Sequence[Mapping[str, Any]] = ()
        self._read_at = float("-inf")
        self._problem = ""

    def choose(self, without: Collection[str] = ()) -> str:
        """The address of a ready server, chosen at random.

        While the list cannot be read, the last one is used.

        Args:
            without: Addresses that have just failed; they are chosen only if no other is ready.

        Raises:
            DeploymentError: If no server is ready.
        """
        addresses = [
            each["addresses"][self._port]
            for each in self.servers()
            if each["ready"] and self._port in each["addresses"]
        ]
        if not addresses:
            raise DeploymentError(
                f"cannot choose a server: {self._url} lists none that is ready and has the port '{self._port}'"
                f"{self._problem and f' ({self._problem})'}; try again, `serve status` has the state of the application"
            )
        address: str = random.choice([each for each in addresses if each not in without] or addresses)
        return address

    def servers(self) -> Sequence[Mapping[str, Any]]:
        """The servers as the directory describes them: the fields of `Report`."""
        is_due = time.monotonic() - self._read_at >= REPORT_SECONDS
        # One thread reads; the others use the last list meanwhile, unless it is empty.
        if is_due and self._lock.acquire(blocking=not self._servers):
            try:
                self._read()
            finally:
                self._lock.release()
        return self._servers

    def _read(self) -> None:
        if time.monotonic() - self._read_at < REPORT_SECONDS:
            return  # another thread has just read it
        try:
            with urllib.request.urlopen(self._url, timeout=_SECONDS) as response:  # noqa: S310 - checked above
                self._servers, self._problem = json.load(response), ""
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._problem = f"it cannot be read: {error}"
        self._read_at = time.monotonic()

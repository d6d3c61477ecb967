"""Which servers run where: a table that their reports keep current, and the deployment that clients ask.

The state is soft. Each server reports every second, so a restarted directory is complete a second later, and a server
that was killed is dropped when its reports stop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

REPORT_SECONDS = 1.0
LISTING = "/replicas"  # the path of the list; Serve redirects all other paths to a server
_LOST_SECONDS = 3.5  # three reports of a server are missing
_LATE_SECONDS = 1.5  # one report is missing: its node may be lost
_NO_SERVER = "no server is ready; `serve status` and the replicas' logs say why"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a server reports."""

    replica: str
    node: str
    pid: int
    addresses: Mapping[str, str]  # address of each port by name: URLs, and `host:port` for gRPC
    ready: bool = False
    requests: int = 0
    revision: str = ""  # the last revision that it has loaded completely or with problems
    problems: Sequence[str] = ()


class ReplicaTable:
    """The servers that report. Times are given in seconds of any one clock."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._times: dict[str, float] = {}
        self._sent: dict[str, int] = {}

    def add(self, report: Report, now: float) -> None:
        self._reports[report.replica] = report
        self._times[report.replica] = now
        self._sent[report.replica] = 0

    def remove(self, replica: str) -> None:
        for table in (self._reports, self._times, self._sent):
            table.pop(replica, None)

    def current(self, now: float) -> list[Report]:
        """The servers whose reports have not stopped, by id."""
        for replica in [name for name, at in self._times.items() if now - at > _LOST_SECONDS]:
            self.remove(replica)
        return [self._reports[name] for name in sorted(self._reports)]

    def choose(self, path: str, now: float) -> str:
        """The URL of the least loaded server for a path; empty if no server is ready.

        A client that was sent to a server since its last report counts as one more request there. A server whose
        report is late is chosen only if those of all servers are.
        """
        name = "openai" if path.startswith("/v1/") else "http"
        ready = [each for each in self.current(now) if each.ready and name in each.addresses]
        if not ready:
            return ""
        ready = [each for each in ready if now - self._times[each.replica] <= _LATE_SECONDS] or ready
        best = min(ready, key=lambda each: each.requests + self._sent[each.replica])
        self._sent[best.replica] += 1
        return best.addresses[name]


class Directory:
    """The deployment that answers Serve's HTTP port: it lists the servers, and redirects clients to them.

    A redirect (307) has the client repeat its request at the server, so no response passes through Ray.
    """

    def __init__(self, server: object) -> None:
        """Make an empty directory; *server* is not called: Serve deploys what a deployment refers to."""
        self._table = ReplicaTable()
        self._server = server

    async def report(self, report: Mapping[str, Any]) -> None:
        self._table.add(Report(**report), time.monotonic())

    async def leave(self, replica: str) -> None:
        self._table.remove(replica)

    async def replicas(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._table.current(time.monotonic())]

    async def __call__(self, request: Any) -> Any:
        """Starlette's response to its request, which came to Serve's HTTP port."""
        from starlette.responses import JSONResponse, RedirectResponse

        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path == LISTING:
            return JSONResponse(await self.replicas())
        url = self._table.choose(path, time.monotonic())
        if not url:
            return JSONResponse({"error": _NO_SERVER}, 503, {"Retry-After": "1"})
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{url}{path}{query}", 307)

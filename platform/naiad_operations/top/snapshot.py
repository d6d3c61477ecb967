"""One reading of a server as values, from the documents of its page; pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from naiad.core.quantities import counted

_READY = "READY"
NOT_SERVING = "not serving"
# Conditions of models that were loaded and do not serve as they should.
CONDITIONS = frozenset({"degraded", "no progress", NOT_SERVING, "refusing"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRow:
    """The server as a whole; None is unknown."""

    url: str
    version: str
    state: str
    uptime_seconds: float | None = None
    requests_per_second: float | None = None
    failures_per_second: float | None = None
    tokens_per_second: float | None = None
    waiting: int | None = None
    running: int | None = None
    memory: int | None = None
    total_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One version of a model; None is unknown. Rates and latencies are those of all versions together."""

    name: str
    version: str
    state: str  # `READY`, `LOADING`, `UNAVAILABLE` and so on, as in the index of the repository
    condition: str = ""  # what a model that is `READY` can do now: `ready`, `degraded`, `no progress` and so on
    demand: str = ""  # state of a model on demand: `dormant`, `loading`, `loaded`, `failed`; empty for another model
    reason: str = ""
    requests_per_second: float | None = None
    failures_per_second: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    waiting: int | None = None
    running: int | None = None
    tokens_per_second: float | None = None
    guests: int | None = None
    restarts: int | None = None
    memory: int | None = None
    warning: str = ""  # what went wrong in the last minutes; empty for nothing

    @property
    def has_failed(self) -> bool:
        return self.state != _READY and bool(self.reason) and self.reason != "unloaded"

    @property
    def trouble(self) -> str:
        """Why it has failed, else what is wrong with it now, else what went wrong in the last minutes."""
        return self.reason if self.has_failed or (self.reason and self.shown_state in CONDITIONS) else self.warning

    @property
    def shown_state(self) -> str:
        """Its state in one word; a model on demand without processes accepts requests, but is not called ready."""
        if self.state == _READY and self.demand in {"dormant", "loading"}:
            return self.demand
        if self.state == _READY and self.condition in CONDITIONS:
            return self.condition
        return self.state.lower() or "unloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRow:
    """One process: a guest, or a process of the server itself; None is unknown."""

    model: str
    version: str
    name: str
    pid: int | None = None
    state: str = ""  # `ready`, `no progress`, `hung`, `restarting`, `given up`
    cpu: float | None = None
    memory: int | None = None
    restarts: int | None = None
    connections: int | None = None  # None for a process that accepts none; so are *requests*
    requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One reading: the server, its models (failed ones first, then the busiest), its processes."""

    server: ServerRow
    models: Sequence[ModelRow]
    guests: Sequence[GuestRow]


def snapshot_of(url: str, state: Mapping[str, Any], guests: Iterable[Mapping[str, Any]]) -> Snapshot:
    """The snapshot of the documents `state` and `guests` of a server's page."""
    server = state["server"]
    models = [
        ModelRow(
            name=each["name"],
            version=each["version"],
            state=each["state"],
            condition=each.get("condition", ""),
            demand=each.get("demand", ""),
            reason=each["reason"],
            guests=each["serving"],
            restarts=each["restarts"],
            warning=_warning(each.get("troubles", {}), server.get("recent_seconds", 0.0)),
            **_figures(each["now"]),
            p50_ms=each["now"].get("p50"),
            p95_ms=each["now"].get("p95"),
        )
        for each in state["models"]
    ]
    models.sort(key=lambda row: (not row.has_failed, -(row.requests_per_second or 0), row.name, row.version))
    own = [
        GuestRow(
            model="",
            version="",
            name=each["role"],
            connections=each.get("connections"),
            requests=each.get("requests"),
            **_process(each),
        )
        for each in state["processes"]
    ]
    of_models = [
        GuestRow(
            model=each["model"],
            version=each["version"],
            name=each["name"],
            state="no progress" if each.get("stalled_seconds") and each["state"] == "ready" else each["state"],
            restarts=sum(each["restarts"].values()),
            **_process(each),
        )
        for each in guests
    ]
    row = ServerRow(
        url=url,
        version=server["version"],
        state=server["state"],
        uptime_seconds=server["uptime_seconds"],
        total_memory=server["total_memory"],
        **_figures(server["now"]),
    )
    return Snapshot(server=row, models=models, guests=[*own, *of_models])


def _process(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"pid": facts["pid"] or None, "cpu": facts["cpu"], "memory": facts["memory"]}


def _warning(troubles: Mapping[str, int], seconds: float) -> str:
    """`3 restarts, 12 failed in 5 min`; empty if nothing went wrong."""
    restarts, failed, rejected = (troubles.get(name, 0) for name in ("restarts", "failed", "rejected"))
    parts = [
        counted(restarts, "restart") if restarts else "",
        f"{failed:,} failed" if failed else "",
        f"{rejected:,} rejected" if rejected else "",
    ]
    told = ", ".join(part for part in parts if part)
    return told and f"{told} in {seconds / 60:.0f} min"


def _figures(now: Mapping[str, float]) -> dict[str, Any]:
    def whole(name: str) -> int | None:
        return int(now[name]) if now.get(name) is not None else None

    return {
        "requests_per_second": now.get("requests"),
        "failures_per_second": now.get("failures"),
        "tokens_per_second": now.get("tokens"),
        "waiting": whole("waiting"),
        "running": whole("running"),
        "memory": whole("memory"),
    }

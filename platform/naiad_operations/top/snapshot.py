"""One reading of a server as values, from the documents of its page or from its metrics; pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from naiad.core.quantities import counted

__all__ = [
    "CONDITIONS",
    "NOT_SERVING",
    "GuestRow",
    "ModelRow",
    "Scrape",
    "ServerRow",
    "Snapshot",
    "parse_metrics",
    "snapshot_of_documents",
    "snapshot_of_metrics",
]

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_US_PER_MS = 1000.0
_TOKENS = "vllm:generation_tokens_total"
_DEMAND = "naiad_demand_model_state"
_READY = "READY"
NOT_SERVING = "not serving"
CONDITIONS = frozenset({"degraded", "no progress", NOT_SERVING, "refusing"})
"""Conditions of models that were loaded and do not serve as they should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRow:
    """The server as a whole; None is unknown.

    Attributes:
        source: `console` or `metrics`: where the figures are from.
        state: `ready`, `not ready` or `draining`.
        memory: Resident bytes of the server and its guests.
        total_memory: Bytes that they may use.
        note: What the source does not have, and how to get it.
    """

    url: str
    source: str
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
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One version of a model; None is unknown. The page's rates and latencies are those of all versions together.

    Attributes:
        version: The version; empty if none could be loaded.
        state: `READY`, `LOADING`, `UNAVAILABLE` and so on, as in the index of the repository.
        condition: What a model that is `READY` can do now: `ready`, `degraded`, `no progress` and so
            on; empty where the server does not tell.
        demand: State of a model on demand: `dormant`, `loading`, `loaded`, `failed`; empty for another model.
        memory: Resident bytes of its guests.
        warning: What went wrong in the last minutes, of a server with its page; empty for nothing.
    """

    name: str
    version: str
    state: str
    condition: str = ""
    demand: str = ""
    reason: str = ""
    requests_per_second: float | None = None
    failures_per_second: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    mean_ms: float | None = None
    waiting: int | None = None
    running: int | None = None
    tokens_per_second: float | None = None
    guests: int | None = None
    restarts: int | None = None
    memory: int | None = None
    warning: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether it should serve and does not."""
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
    """One process: a guest, or a process of the server itself; None is unknown.

    Attributes:
        model: Its model; this and the version are empty for a process of the server.
        state: `ready`, `no progress`, `hung`, `restarting`, `given up`.
        cpu: Cores that it keeps busy.
        connections: None for a process that accepts none; so are *requests*.
    """

    model: str
    version: str
    name: str
    pid: int | None = None
    state: str = ""
    cpu: float | None = None
    memory: int | None = None
    restarts: int | None = None
    connections: int | None = None
    requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One reading: the server, its models (failed ones first), its processes."""

    server: ServerRow
    models: Sequence[ModelRow]
    guests: Sequence[GuestRow]


# -- from the documents of the page -----------------------------------------------------------------------------------


def snapshot_of_documents(url: str, state: Mapping[str, Any], guests: Iterable[Mapping[str, Any]]) -> Snapshot:
    """The snapshot of the documents `state` and `guests` of a server's page."""
    server = state["server"]
    now = server["now"]
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
            memory=_whole(each["now"].get("memory")),
            warning=_warning(each.get("troubles", {}), server.get("recent_seconds", 0.0)),
            **_rates(each["now"]),
            p50_ms=each["now"].get("p50"),
            p95_ms=each["now"].get("p95"),
        )
        for each in state["models"]
    ]
    own = [
        GuestRow(
            model="",
            version="",
            name=each["role"],
            pid=each["pid"],
            cpu=each["cpu"],
            memory=each["memory"],
            connections=each.get("connections"),
            requests=each.get("requests"),
        )
        for each in state["processes"]
    ]
    of_models = [
        GuestRow(
            model=each["model"],
            version=each["version"],
            name=each["name"],
            pid=each["pid"] or None,
            state="no progress" if each.get("stalled_seconds") and each["state"] == "ready" else each["state"],
            cpu=each["cpu"],
            memory=each["memory"],
            restarts=sum(each["restarts"].values()),
        )
        for each in guests
    ]
    row = ServerRow(
        url=url,
        source="console",
        version=server["version"],
        state=server["state"],
        uptime_seconds=server["uptime_seconds"],
        memory=_whole(now.get("memory")),
        total_memory=server["total_memory"],
        **_rates(now),
    )
    return Snapshot(server=row, models=_ordered(models), guests=[*own, *of_models])


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


def _rates(now: Mapping[str, float]) -> dict[str, Any]:
    return {
        "requests_per_second": now.get("requests"),
        "failures_per_second": now.get("failures"),
        "tokens_per_second": now.get("tokens"),
        "waiting": _whole(now.get("waiting")),
        "running": _whole(now.get("running")),
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _ordered(models: Iterable[ModelRow]) -> list[ModelRow]:
    return sorted(models, key=lambda row: (not row.has_failed, -(row.requests_per_second or 0), row.name, row.version))


# -- from metrics -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one reading of `/metrics`: value by name and labels, and when they were read."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]
    seconds: float

    def values(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of each sample of this name."""
        for (each, labels), value in self.samples.items():
            if each == name:
                yield dict(labels), value

    def sum_of(self, name: str, **labels: str) -> float | None:
        """The sum of the samples of this name that have these labels; None without such a sample."""
        found = [value for given, value in self.values(name) if labels.items() <= given.items()]
        return sum(found) if found else None


def parse_metrics(text: str, seconds: float) -> Scrape:
    """The samples of Prometheus' text format, read at a time in seconds."""
    samples = {}
    for line in text.splitlines():
        if line.startswith("#") or not (found := _SAMPLE.match(line)):
            continue
        name, labels, value = found.groups()
        samples[name, frozenset(_LABEL.findall(labels or ""))] = float(value)
    return Scrape(samples, seconds)


def snapshot_of_metrics(
    server: ServerRow, index: Iterable[Mapping[str, str]], before: Scrape | None, now: Scrape | None
) -> Snapshot:
    """The snapshot of a server without a page; rates need an earlier scrape, and *now* is None without metrics."""
    demand = {} if now is None else {labels["model"]: labels["state"] for labels, _ in now.values(_DEMAND)}
    models = [_model_of_metrics(entry, demand.get(entry.get("name", ""), ""), before, now) for entry in index]
    if now is None:
        return Snapshot(server=server, models=_ordered(models), guests=())
    row = ServerRow(
        url=server.url,
        source=server.source,
        version=server.version,
        state=server.state,
        requests_per_second=_rate("nv_inference_request_success", before, now),
        failures_per_second=_rate("nv_inference_request_failure", before, now),
        tokens_per_second=_rate(_TOKENS, before, now),
        waiting=_whole(now.sum_of("nv_inference_pending_request_count")),
        memory=_whole(now.sum_of("naiad_guest_memory_bytes", kind="resident")),
        note=server.note,
    )
    guests = [
        GuestRow(
            model=labels.get("model", ""),
            version=labels.get("version", ""),
            name=labels.get("instance", ""),
            memory=int(value),
            restarts=int(now.sum_of("naiad_guest_restarts_total", **_without_kind(labels)) or 0),
        )
        for labels, value in now.values("naiad_guest_memory_bytes")
        if labels.get("kind") == "resident"
    ]
    return Snapshot(server=row, models=_ordered(models), guests=[*_processes_of_metrics(before, now), *guests])


def _processes_of_metrics(before: Scrape | None, now: Scrape) -> list[GuestRow]:
    """The processes of the server itself, if it has more than one."""
    return [
        GuestRow(
            model="",
            version="",
            name=f"process {labels.get('process', '')}",
            cpu=_rate("naiad_process_cpu_seconds_total", before, now, labels),
            memory=int(value),
            connections=_whole(now.sum_of("naiad_process_connections", **labels)),
            requests=_whole(now.sum_of("naiad_process_requests_total", **labels)),
        )
        for labels, value in now.values("naiad_process_memory_bytes")
    ]


def _without_kind(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "kind"}


def _model_of_metrics(entry: Mapping[str, str], demand: str, before: Scrape | None, now: Scrape | None) -> ModelRow:
    name, version = entry.get("name", ""), entry.get("version", "")
    known = ModelRow(
        name=name,
        version=version,
        state=entry.get("state", ""),
        demand=demand,
        reason=entry.get("reason", "").partition("\n")[0],
    )
    if now is None:
        return known
    labels = {"model": name, "version": version}
    count = _change("nv_inference_request_success", before, now, labels)
    duration = _change("nv_inference_request_duration_us", before, now, labels)
    quantiles = {q: now.sum_of("nv_inference_request_summary_us", quantile=q, **labels) for q in ("0.5", "0.95")}
    return ModelRow(
        name=name,
        version=version,
        state=known.state,
        demand=known.demand,
        reason=known.reason,
        requests_per_second=_rate("nv_inference_request_success", before, now, labels),
        failures_per_second=_rate("nv_inference_request_failure", before, now, labels),
        tokens_per_second=_rate(_TOKENS, before, now, {"model_name": name}),
        p50_ms=_milliseconds(quantiles["0.5"]),
        p95_ms=_milliseconds(quantiles["0.95"]),
        mean_ms=duration / count / _US_PER_MS if count and duration is not None else None,
        waiting=_whole(now.sum_of("nv_inference_pending_request_count", **labels)),
        guests=_whole(now.sum_of("naiad_guests_alive", **labels)),
        restarts=_whole(now.sum_of("naiad_guest_restarts_total", **labels)),
        memory=_whole(now.sum_of("naiad_guest_memory_bytes", kind="resident", **labels)),
    )


def _change(name: str, before: Scrape | None, now: Scrape, labels: Mapping[str, str]) -> float | None:
    """How much a counter has grown; since zero if it has begun again."""
    value = now.sum_of(name, **labels)
    if before is None or value is None:
        return None
    earlier = before.sum_of(name, **labels) or 0.0
    return value - earlier if value >= earlier else value


def _rate(name: str, before: Scrape | None, now: Scrape, labels: Mapping[str, str] | None = None) -> float | None:
    change = _change(name, before, now, labels or {})
    return None if change is None or before is None else change / max(now.seconds - before.seconds, 1e-3)


def _milliseconds(microseconds: float | None) -> float | None:
    # A summary without requests in its window is NaN.
    return None if microseconds is None or math.isnan(microseconds) else microseconds / _US_PER_MS

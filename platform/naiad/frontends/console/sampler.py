"""Makes the samples of the history: rates and quantiles of the time since the last sample."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import nan
from pathlib import Path
from typing import Protocol

from naiad.engine.facade import EngineFacade
from naiad.frontends.console.history import STEP_SECONDS, History
from naiad.frontends.console.troubles import (
    RecentTroubles,
    Troubles,
    VersionKey,
    failed_count,
    read_troubles,
    rejected_count,
)
from naiad.protocol.metadata import InstanceStatus, ModelStatistics
from naiad.protocol.model_metrics import ModelMetricFamily
from naiad.protocol.model_names import model_key
from naiad.protocol.quantiles import quantile_of

logger = logging.getLogger("naiad.ui")

_TOKENS = "vllm:generation_tokens_total"  # as vLLM and our own backend of language models name the counter
_MICROSECONDS_PER_MS = 1000
_FIRST_SECONDS = 0.5  # when the first sample is made, so that a page of a server that just started has figures
_MODEL_LABELS = ("model", "model_name")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process uses."""

    memory: int  # resident bytes
    cpu_seconds: float


class ConsoleEngine(EngineFacade, Protocol):
    """The engine as the console uses it: also with what clients cannot ask for."""

    @property
    def is_draining(self) -> bool:
        """Whether the server still serves, while clients should connect to other servers."""

    def instances(self) -> list[InstanceStatus]:
        """All instances with the state of their guests."""

    def demand_states(self) -> Mapping[str, str]:
        """The state of each model that is loaded on demand, by its key: dormant, loading, loaded, failed."""

    def call_counts(self) -> Mapping[tuple[str, str], int]:
        """How many calls models made to models, by the names of both."""


@dataclass(slots=True)
class _Counts:
    """The counters of one model, over its versions."""

    success: int = 0
    failed: int = 0
    waiting: int = 0
    running: int = 0
    tokens: float = 0.0
    latencies: Counter[int] = field(default_factory=Counter)
    first_latencies: Counter[int] = field(default_factory=Counter)

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


class Sampler:
    """Adds a sample to a history every few seconds."""

    def __init__(
        self,
        engine: ConsoleEngine,
        metrics: Iterable[ModelMetricFamily],  # the metrics of models; each iteration gives the current ones
        history: History,
        roles: Callable[[], Mapping[int, str]],  # the processes of the server other than guests, with what each does
    ) -> None:
        self._roles = roles
        self._engine = engine
        self._metrics = metrics
        self._history = history
        self._before: dict[str, _Counts] = {}
        self._last = time.monotonic()
        self._troubles = RecentTroubles()
        self.processes: Mapping[int, ProcessUse] = {}  # at the last sample, by process id
        self.cpu: Mapping[int, float] = {}  # how many cores each of them kept busy since the sample before
        self.sample({})

    async def run(self) -> None:
        pause = _FIRST_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                await self.sample_now()
            except Exception:
                logger.exception("cannot sample the figures of the page")
            pause = STEP_SECONDS - time.time() % STEP_SECONDS

    async def sample_now(self) -> None:
        pids = {*self._roles(), *(instance.pid for instance in self._engine.instances() if instance.pid)}
        self.sample(await asyncio.to_thread(read_processes, pids))

    def sample(self, processes: Mapping[int, ProcessUse]) -> None:
        now = time.monotonic()
        seconds, self._last = max(now - self._last, 1e-3), now
        self.cpu = {
            pid: max(use.cpu_seconds - self.processes[pid].cpu_seconds, 0.0) / seconds
            for pid, use in processes.items()
            if pid in self.processes
        }
        self.processes = processes
        statistics, instances = list(self._engine.statistics()), list(self._engine.instances())
        self._troubles.add(now, read_troubles(statistics, instances))
        counts = _counts_of(statistics, self._metrics)
        changes = {key: _change(each, self._before.get(key)) for key, each in counts.items()}
        self._before = counts
        figures = {key: _figures(change, seconds) for key, change in changes.items()}
        figures[""] = _figures(sum(changes.values(), _Counts()), seconds)
        memory: Counter[str] = Counter()
        cpu: dict[str, float] = {}
        for instance in instances:
            key = model_key(instance.namespace, instance.model)
            if instance.pid in processes:
                memory[key] += processes[instance.pid].memory
                cpu[key] = cpu.get(key, 0.0) + self.cpu.get(instance.pid, 0.0)
        for key, values in figures.items():
            if key in memory:
                values["memory"], values["cpu"] = float(memory[key]), cpu[key]
        figures[""]["memory"] = float(sum(use.memory for use in processes.values()))
        figures[""]["cpu"] = sum(self.cpu.values())
        if processes:  # the first reading, without them, is only what later ones are compared with
            self._history.add(time.time(), figures)

    def recent_troubles(
        self, statistics: Iterable[ModelStatistics], instances: Iterable[InstanceStatus]
    ) -> dict[VersionKey, Troubles]:
        """What happened to each loaded version in the last minutes, until now."""
        now = time.monotonic()
        counted = read_troubles(statistics, instances)
        return {key: self._troubles.recent(key, now, counts) for key, counts in counted.items()}


def read_processes(pids: Iterable[int]) -> dict[int, ProcessUse]:
    """What processes use; those that ended are left out. One file of a few hundred bytes is read for each."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    found = {}
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            # After the name, which may contain spaces: utime, stime and rss are the fields 14, 15 and 24 (proc(5)).
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            found[pid] = ProcessUse(int(fields[21]) * page, (int(fields[11]) + int(fields[12])) / ticks)
    return found


def _counts_of(statistics: Iterable[ModelStatistics], metrics: Iterable[ModelMetricFamily]) -> dict[str, _Counts]:
    tokens: dict[str, float] = {}
    for family in metrics:
        if family.name == _TOKENS:
            for metric in family.metrics.values():
                labels = dict(metric.labels)
                name = next((labels[label] for label in _MODEL_LABELS if label in labels), "")
                tokens[name] = tokens.get(name, 0.0) + metric.value
    counts: dict[str, _Counts] = {}
    for each in statistics:
        key = model_key(each.namespace, each.name)
        counts[key] = counts.get(key, _Counts(tokens=tokens.get(each.name, 0.0))) + _Counts(
            success=each.success.count - each.error_responses,
            failed=failed_count(each) + rejected_count(each),
            waiting=each.pending_count,
            running=each.running_count,
            latencies=Counter(each.latencies),
            first_latencies=Counter(each.first_latencies),
        )
    return counts


def _change(now: _Counts, before: _Counts | None) -> _Counts:
    """What was counted between two samples; another load of the model counts from zero."""
    if before is None or now.success < before.success or now.failed < before.failed:
        return now
    return _Counts(
        success=now.success - before.success,
        failed=now.failed - before.failed,
        waiting=now.waiting,
        running=now.running,
        tokens=max(now.tokens - before.tokens, 0.0),
        latencies=now.latencies - before.latencies,
        first_latencies=now.first_latencies - before.first_latencies,
    )


def _figures(change: _Counts, seconds: float) -> dict[str, float]:
    return {
        "requests": change.success / seconds,
        "failures": change.failed / seconds,
        "tokens": change.tokens / seconds,
        "waiting": float(change.waiting),
        "running": float(change.running),
        "p50": _milliseconds(change.latencies, 0.5),
        "p95": _milliseconds(change.latencies, 0.95),
        "first_p50": _milliseconds(change.first_latencies, 0.5),
        "first_p95": _milliseconds(change.first_latencies, 0.95),
    }


def _milliseconds(counts: Mapping[int, int], quantile: float) -> float:
    return quantile_of(counts, quantile) / _MICROSECONDS_PER_MS if counts else nan

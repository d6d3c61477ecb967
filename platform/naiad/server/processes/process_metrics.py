"""Metrics of the processes of a server: measured in each of them, added up by the coordinator.

Each process reports its families when it is asked, which a scrape does. Counters never go backwards: what a process had
reported last stays in the sum after it has exited. The coordinator itself counts requests, since none may be missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import psutil

from naiad.frontends.metrics.families import Family, MetricType, Sample
from naiad.frontends.metrics.naiad_families import connection_families, request_memory_families
from naiad.frontends.open_connections import ConnectionCount
from naiad.frontends.request_memory import RequestMemory

Labels = tuple[tuple[str, str], ...]


def role_of(number: int) -> str:
    """What people see of a process of the server: on the page, and in `ps`."""
    return f"process {number}"


def process_families(number: int, count: ConnectionCount, memory: RequestMemory, *, requests: int) -> list[Family]:
    """The families that each process of the server measures, those about itself with its number as the label.

    Number 0 is the coordinator. *requests* is how many it has submitted whose last response it does not have.
    """

    def family(name: str, description: str, value: float, kind: MetricType = MetricType.GAUGE) -> Family:
        return Family(name, description, kind, [Sample({"process": str(number)}, value)])

    of = "of a process of the server"
    return [
        *connection_families(count),
        *request_memory_families(memory),
        family("naiad_process_cpu_seconds_total", f"CPU time {of}", time.process_time(), MetricType.COUNTER),
        family("naiad_process_memory_bytes", f"Resident memory {of}", psutil.Process().memory_info().rss),
        family(
            "naiad_process_connections",
            f"Number of open client connections {of}, without those for metrics",
            count.open,
        ),
        family(
            "naiad_process_requests_in_flight",
            f"Number of inference requests {of} without their last response",
            requests,
        ),
    ]


def received_family(received: Mapping[int, int]) -> Family:
    """The family with the number of requests that each process, by its number, has received."""
    return Family(
        "naiad_process_requests_total",
        "Number of inference requests that a process of the server has received",
        MetricType.COUNTER,
        [Sample({"process": str(process)}, count) for process, count in received.items()],
    )


class FamilySum:
    """The sum of what several processes report, of those that have exited, too."""

    def __init__(self) -> None:
        self._retired: dict[tuple[str, Labels], float] = {}
        self._known: dict[str, Family] = {}

    def retire(self, families: Iterable[Family]) -> None:
        for family in families:
            self._known.setdefault(family.name, family)
            if family.type is MetricType.COUNTER:
                for sample in family.samples:
                    key = family.name, _key(sample.labels)
                    self._retired[key] = self._retired.get(key, 0) + sample.value

    def total(self, reports: Sequence[Iterable[Family]]) -> list[Family]:
        """The sum over *reports* and the retired counters, by name and labels."""
        sums: dict[str, dict[Labels, float]] = {}
        families = dict(self._known)
        for (name, labels), value in self._retired.items():
            sums.setdefault(name, {})[labels] = value
        for report in reports:
            for family in report:
                families.setdefault(family.name, family)
                summed = sums.setdefault(family.name, {})
                for sample in family.samples:
                    labels = _key(sample.labels)
                    summed[labels] = summed.get(labels, 0) + sample.value
        return [
            replace(families[name], samples=[Sample(dict(labels), value) for labels, value in series.items()])
            for name, series in sums.items()
        ]


def _key(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))

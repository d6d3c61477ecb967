"""Metrics of several processes are added up, and counters never go backwards."""

from __future__ import annotations

from naiad.frontends.metrics.families import Family, MetricType, Sample
from naiad.frontends.open_connections import ConnectionCount
from naiad.frontends.request_memory import RequestMemory
from naiad.server.processes.process_metrics import FamilySum, process_families, received_family, role_of


def counter(name: str, **values: float) -> Family:
    return Family(name, "what it counts", MetricType.COUNTER, [Sample({"kind": k}, v) for k, v in values.items()])


def gauge(name: str, value: float) -> Family:
    return Family(name, "what it is", MetricType.GAUGE, [Sample({}, value)])


def values(families: list[Family]) -> dict[tuple[str, str], float]:
    return {
        (family.name, sample.labels.get("kind", "")): sample.value for family in families for sample in family.samples
    }


def test_samples_with_equal_names_and_labels_are_added() -> None:
    total = FamilySum().total([[counter("c", a=1, b=2), gauge("g", 5)], [counter("c", a=10), gauge("g", 7)]])
    assert values(total) == {("c", "a"): 11, ("c", "b"): 2, ("g", ""): 12}
    assert [(family.name, family.type) for family in total] == [("c", MetricType.COUNTER), ("g", MetricType.GAUGE)]


def test_counters_of_a_process_that_has_exited_stay_and_its_gauges_go() -> None:
    found = FamilySum()
    before = values(found.total([[counter("c", a=3), gauge("g", 5)], [counter("c", a=4)]]))
    found.retire([counter("c", a=3), gauge("g", 5)])
    assert values(found.total([[counter("c", a=4)]])) == {("c", "a"): 7}
    assert before["c", "a"] == 7


def test_counters_never_go_backwards_over_any_number_of_restarts() -> None:
    found = FamilySum()
    seen = [0.0]
    for process in range(5):
        # A process begins at 0.
        seen += [values(found.total([[counter("c", a=count)]]))["c", "a"] for count in range(4)]
        if process % 2:
            found.retire([])  # it exited before anybody asked for its metrics again
            found.retire([counter("c", a=3)])
        else:
            found.retire([counter("c", a=3)])
        seen.append(values(found.total([]))["c", "a"])
    assert seen == sorted(seen)
    assert seen[-1] == 15


def test_a_series_without_a_process_is_shown_with_its_family() -> None:
    found = FamilySum()
    found.retire([counter("c", a=2)])
    (family,) = found.total([])
    assert (family.name, family.help, family.type) == ("c", "what it counts", MetricType.COUNTER)


def test_a_process_measures_itself_under_its_number() -> None:
    count = ConnectionCount()
    count.open = 3
    found = {each.name: each for each in process_families(2, count, RequestMemory(1 << 20), requests=5)}
    own = {name: each for name, each in found.items() if name.startswith("naiad_process_")}
    assert {name: each.type for name, each in own.items()} == {
        "naiad_process_cpu_seconds_total": MetricType.COUNTER,
        "naiad_process_memory_bytes": MetricType.GAUGE,
        "naiad_process_connections": MetricType.GAUGE,
        "naiad_process_requests_in_flight": MetricType.GAUGE,
    }
    assert all(each.help and [sample.labels for sample in each.samples] == [{"process": "2"}] for each in own.values())
    values = {name: each.samples[0].value for name, each in own.items()}
    assert values["naiad_process_connections"] == 3
    assert values["naiad_process_requests_in_flight"] == 5
    assert 0 < values["naiad_process_cpu_seconds_total"] < 1e6
    assert 1 << 20 < values["naiad_process_memory_bytes"] < 1 << 40
    assert "naiad_connections_open" in found
    assert role_of(2) == "process 2"


def test_received_requests_are_counted_by_process() -> None:
    family = received_family({0: 4, 1: 7})
    assert (family.name, family.type) == ("naiad_process_requests_total", MetricType.COUNTER)
    assert [(each.labels, each.value) for each in family.samples] == [({"process": "0"}, 4), ({"process": "1"}, 7)]

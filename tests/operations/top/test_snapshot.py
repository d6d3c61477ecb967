"""Snapshots of servers without a page: rates from two scrapes, with gaps where a server has no figure."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from naiad.cli.http_reading import UnreachableServerError
from naiad_operations.top.command import show
from naiad_operations.top.screen import draw
from naiad_operations.top.snapshot import ServerRow, parse_metrics, snapshot_of_documents, snapshot_of_metrics

SERVER = ServerRow(url="http://x", source="metrics", version="1", state="ready", note="start it with --ui=true")
INDEX = [
    {"name": "idle", "version": "1", "state": "READY", "reason": ""},
    {"name": "busy", "version": "1", "state": "READY", "reason": ""},
    {"name": "bad", "version": "1", "state": "UNAVAILABLE", "reason": "no weights\nTraceback"},
    {"name": "gone", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
]
FIRST = """
# HELP nv_inference_request_success Number of successful inference requests
nv_inference_request_success{model="busy",version="1"} 100
nv_inference_request_success{model="idle",version="1"} 5
nv_inference_request_duration_us{model="busy",version="1"} 1000000
nv_inference_request_failure{model="busy",reason="OTHER",version="1"} 1
nv_inference_request_failure{model="busy",reason="BACKEND",version="1"} 1
"""
SECOND = """
nv_inference_request_success{model="busy",version="1"} 120
nv_inference_request_success{model="idle",version="1"} 5
nv_inference_request_duration_us{model="busy",version="1"} 1040000
nv_inference_request_failure{model="busy",reason="OTHER",version="1"} 1
nv_inference_request_failure{model="busy",reason="BACKEND",version="1"} 3
nv_inference_pending_request_count{model="busy",version="1"} 7
nv_inference_request_summary_us{model="busy",version="1",quantile="0.5"} 1500
nv_inference_request_summary_us{model="busy",version="1",quantile="0.95"} NaN
naiad_guests_alive{model="busy",version="1"} 2
naiad_guest_memory_bytes{instance="busy_0",kind="resident",model="busy",version="1"} 3000000
naiad_guest_memory_bytes{instance="busy_0",kind="shared",model="busy",version="1"} 1000
naiad_guest_restarts_total{instance="busy_0",model="busy",reason="exit \\"3\\", {odd}",version="1"} 4
"""


def snapshot(before=FIRST, now=SECOND):
    first = None if before is None else parse_metrics(before, 10.0)
    return snapshot_of_metrics(SERVER, INDEX, first, None if now is None else parse_metrics(now, 12.0))


def drawn(found, problem="", width=120):
    file = io.StringIO()
    Console(file=file, width=width).print(draw(found, problem, width=width))
    return file.getvalue()


def test_rates_are_changes_between_two_scrapes():
    found = snapshot()
    busy = next(row for row in found.models if row.name == "busy")
    assert (busy.requests_per_second, busy.failures_per_second) == (10.0, 1.0)
    assert (busy.mean_ms, busy.p50_ms, busy.p95_ms) == (2.0, 1.5, None)
    assert (busy.waiting, busy.guests, busy.restarts, busy.memory) == (7, 2, 4, 3_000_000)
    idle = next(row for row in found.models if row.name == "idle")
    assert (idle.requests_per_second, idle.mean_ms, idle.waiting) == (0.0, None, None)
    assert (found.server.requests_per_second, found.server.waiting, found.server.memory) == (10.0, 7, 3_000_000)
    (guest,) = found.guests
    assert (guest.model, guest.name, guest.memory, guest.restarts, guest.pid) == ("busy", "busy_0", 3_000_000, 4, None)


PROCESSES = """\
naiad_process_memory_bytes{process="0"} 70000000
naiad_process_cpu_seconds_total{process="0"} 3.5
naiad_process_memory_bytes{process="1"} 90000000
naiad_process_cpu_seconds_total{process="1"} 5.0
naiad_process_connections{process="1"} 12
naiad_process_requests_total{process="1"} 340
"""


def test_processes_of_the_server_have_their_connections_and_requests():
    found = snapshot(FIRST + PROCESSES, SECOND + PROCESSES.replace(" 5.0", " 6.0"))
    first, other, _ = found.guests
    assert (first.name, first.memory, first.cpu, first.connections) == ("process 0", 70_000_000, 0.0, None)
    assert (other.name, other.cpu, other.connections, other.requests) == ("process 1", 0.5, 12, 340)
    text = drawn(found, width=80)
    assert "Connections Requests" in text
    assert "90 MB          12      340" in text
    assert "Connections" not in drawn(snapshot())


def test_failed_models_are_first_and_then_the_busiest():
    assert [row.name for row in snapshot().models] == ["bad", "busy", "gone", "idle"]
    assert [row.has_failed for row in snapshot().models] == [True, False, False, False]
    assert snapshot().models[0].reason == "no weights"


DEMAND = """\
naiad_demand_model_state{model="idle",state="dormant"} 1
naiad_demand_model_state{model="busy",state="loaded"} 1
naiad_demand_model_state{model="bad",state="failed"} 1
"""


def test_models_on_demand_have_the_state_of_their_processes():
    found = snapshot(now=SECOND + DEMAND)
    shown = {row.name: (row.demand, row.shown_state) for row in found.models}
    assert shown == {
        "idle": ("dormant", "dormant"),
        "busy": ("loaded", "ready"),
        "bad": ("failed", "unavailable"),
        "gone": ("", "unavailable"),
    }
    assert "1 model ready, 1 dormant, 1 failed" in drawn(found)
    assert "1 model ready, 1 loading, 1 failed" in drawn(snapshot(now=SECOND + DEMAND.replace("dormant", "loading")))


def test_a_counter_that_began_again_counts_from_zero():
    found = snapshot(before=SECOND, now=FIRST.replace("} 100", "} 8"))
    busy = next(row for row in found.models if row.name == "busy")
    assert busy.requests_per_second == 4.0


def test_without_an_earlier_scrape_there_are_no_rates_and_without_metrics_only_states():
    busy = next(row for row in snapshot(before=None).models if row.name == "busy")
    assert (busy.requests_per_second, busy.mean_ms, busy.waiting) == (None, None, 7)
    alone = snapshot(before=None, now=None)
    assert {row.name: row.state for row in alone.models} == {each["name"]: each["state"] for each in INDEX}
    assert alone.guests == ()


def test_the_tables_fit_a_narrow_terminal_and_show_what_failed():
    text = drawn(snapshot(), "12:00:00: cannot reach a server", width=80)
    assert "2 models ready, 1 failed, 10 requests/s, 1.0 failures/s, 7 waiting" in text
    assert "bad 1: no weights" in text
    assert "12:00:00: cannot reach a server" in text
    assert "busy_0 of busy 1" in text
    assert "…" not in text
    assert "mean ms" in text
    assert "mean ms" not in drawn(snapshot(before=None))


def test_documents_of_a_page_are_a_snapshot_with_every_figure():
    now = {"requests": 3.0, "failures": 0.0, "waiting": 1.0, "running": 2.0, "p50": 4.0, "p95": 9.5, "memory": 7.0}
    model = {"name": "m", "version": "1", "state": "READY", "reason": "", "serving": 1, "restarts": 3, "now": now}
    server = {"version": "9", "state": "draining", "uptime_seconds": 7200.0, "total_memory": 64 << 30, "now": now}
    process = {"role": "process 0", "pid": 7, "memory": 5 << 20, "cpu": 0.5}
    other = {"role": "process 1", "pid": 8, "memory": None, "cpu": None, "connections": 3, "requests": 40}
    guest = {"model": "m", "version": "1", "name": "m_0", "pid": 0, "state": "given up", "memory": None, "cpu": None}
    state = {"server": server, "models": [model], "processes": [process, other]}
    found = snapshot_of_documents("http://x", state, [{**guest, "restarts": {"SIGKILL": 2, "hang": 1}}])
    assert (found.models[0].p95_ms, found.models[0].running, found.models[0].guests) == (9.5, 2, 1)
    assert [(row.name, row.pid, row.restarts) for row in found.guests] == [
        ("process 0", 7, None),
        ("process 1", 8, None),
        ("m_0", None, 3),
    ]
    assert found.models[0].warning == ""
    troubles = {"restarts": 1, "failed": 1200, "rejected": 0}
    warned = {**state, "server": {**server, "recent_seconds": 300.0}, "models": [{**model, "troubles": troubles}]}
    assert snapshot_of_documents("http://x", warned, []).models[0].warning == "1 restart, 1,200 failed in 5 min"
    assert [(row.connections, row.requests) for row in found.guests] == [(None, None), (3, 40), (None, None)]
    text = drawn(found)
    assert "naiad 9 draining at http://x" in text
    assert "up 2 h" in text
    assert "given up" in text
    assert "50%" in text
    state["models"] = [{**model, "demand": "dormant", "serving": 0}]
    line = next(
        line for line in drawn(snapshot_of_documents("http://x", state, [])).splitlines() if line.startswith("m ")
    )
    assert line.split()[:3] == ["m", "1", "dormant"]


@pytest.mark.parametrize("condition", ["degraded", "no progress", "not serving", "refusing"])
def test_what_is_wrong_with_a_model_that_was_loaded_is_its_state(condition):
    server = {"version": "9", "state": "ready", "uptime_seconds": 1, "total_memory": 1, "now": {}}
    model = {"name": "m", "version": "1", "state": "READY", "reason": "", "serving": 1, "restarts": 0, "now": {}}
    guest = {"model": "m", "version": "1", "name": "m_0", "pid": 7, "state": "ready", "memory": None, "cpu": None}
    troubled = {**model, "condition": condition, "reason": "execute of 'm_0' stands still"}
    state = {"server": server, "models": [troubled, {**model, "name": "n", "condition": "ready"}], "processes": []}
    guests = [{**guest, "restarts": {}, "stalled_seconds": 75.0}]
    text = drawn(snapshot_of_documents("http://x", state, guests))
    assert f"1 model ready, 1 {condition}" in text
    assert (
        f"m 1       {condition}".split()
        == next(line for line in text.splitlines() if line.startswith("m ")).split()[: 2 + len(condition.split())]
    )
    assert "m 1: execute of 'm_0' stands still" in text
    assert next(line for line in text.splitlines() if line.startswith("m_0")).split()[3:6] == ["1", "no", "progress"]


def test_a_server_that_stops_answering_is_waited_for_and_its_last_figures_stay():
    refused = UnreachableServerError("cannot reach a server at http://x: connection refused; start one")
    readings = [snapshot(), refused]

    class Reader:
        def read(self):
            if not readings:
                raise KeyboardInterrupt
            reading = readings.pop(0)
            if isinstance(reading, Exception):
                raise reading
            return reading

    file = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        show(Reader(), 0.0, Console(file=file, force_terminal=True, width=120, height=30))
    before, _, after = file.getvalue().partition("cannot reach a server at http://x: connection refused\x1b")
    assert "2 models ready, 1 failed" in before
    assert "busy_0 of busy 1" in after
    assert "start one" not in after

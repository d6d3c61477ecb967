"""Snapshots from the documents of a server's page, and what is drawn of them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from naiad.cli.http_reading import UnreachableServerError
from naiad_operations.top.command import show
from naiad_operations.top.screen import draw
from naiad_operations.top.snapshot import snapshot_of

FACTS = {"version": "1", "state": "READY", "reason": "", "serving": 1, "restarts": 0, "now": {}}
SERVER = {
    "version": "9",
    "state": "ready",
    "uptime_seconds": 1.0,
    "total_memory": 1,
    "now": {"requests": 10.0, "failures": 1.0, "waiting": 7.0},
}
GUEST = {"model": "busy", "version": "1", "name": "busy_0", "pid": 7, "state": "ready", "memory": None, "cpu": None}


def snapshot(**demand):
    models = [
        {**FACTS, "name": "idle"},
        {**FACTS, "name": "busy", "now": {"requests": 10.0}},
        {**FACTS, "name": "bad", "state": "UNAVAILABLE", "reason": "no weights"},
        {**FACTS, "name": "gone", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]
    models = [{**each, "demand": demand.get(each["name"], "")} for each in models]
    state = {"server": SERVER, "models": models, "processes": []}
    return snapshot_of("http://x", state, [{**GUEST, "restarts": {}}])


def drawn(found, problem="", width=120):
    file = io.StringIO()
    Console(file=file, width=width).print(draw(found, problem, width=width))
    return file.getvalue()


def test_failed_models_are_first_and_then_the_busiest():
    assert [row.name for row in snapshot().models] == ["bad", "busy", "gone", "idle"]
    assert [row.has_failed for row in snapshot().models] == [True, False, False, False]


def test_models_on_demand_have_the_state_of_their_processes():
    found = snapshot(idle="dormant", busy="loaded", bad="failed")
    shown = {row.name: (row.demand, row.shown_state) for row in found.models}
    assert shown == {
        "idle": ("dormant", "dormant"),
        "busy": ("loaded", "ready"),
        "bad": ("failed", "unavailable"),
        "gone": ("", "unavailable"),
    }
    assert "1 model ready, 1 dormant, 1 failed" in drawn(found)
    assert "1 model ready, 1 loading, 1 failed" in drawn(snapshot(idle="loading"))


def test_the_tables_fit_a_narrow_terminal_and_show_what_failed():
    text = drawn(snapshot(), "12:00:00: cannot reach a server", width=80)
    assert "2 models ready, 1 failed, 10 requests/s, 1.0 failures/s, 7 waiting" in text
    assert "bad 1: no weights" in text
    assert "12:00:00: cannot reach a server" in text
    assert "busy_0 of busy 1" in text
    assert "…" not in text


def test_documents_of_a_page_are_a_snapshot_with_every_figure():
    now = {"requests": 3.0, "failures": 0.0, "waiting": 1.0, "running": 2.0, "p50": 4.0, "p95": 9.5, "memory": 7.0}
    model = {"name": "m", "version": "1", "state": "READY", "reason": "", "serving": 1, "restarts": 3, "now": now}
    server = {"version": "9", "state": "draining", "uptime_seconds": 7200.0, "total_memory": 64 << 30, "now": now}
    process = {"role": "process 0", "pid": 7, "memory": 5 << 20, "cpu": 0.5}
    other = {"role": "process 1", "pid": 8, "memory": None, "cpu": None, "connections": 3, "requests": 40}
    guest = {"model": "m", "version": "1", "name": "m_0", "pid": 0, "state": "given up", "memory": None, "cpu": None}
    state = {"server": server, "models": [model], "processes": [process, other]}
    found = snapshot_of("http://x", state, [{**guest, "restarts": {"SIGKILL": 2, "hang": 1}}])
    assert (found.models[0].p95_ms, found.models[0].running, found.models[0].guests) == (9.5, 2, 1)
    assert [(row.name, row.pid, row.restarts) for row in found.guests] == [
        ("process 0", 7, None),
        ("process 1", 8, None),
        ("m_0", None, 3),
    ]
    assert found.models[0].warning == ""
    troubles = {"restarts": 1, "failed": 1200, "rejected": 0}
    warned = {**state, "server": {**server, "recent_seconds": 300.0}, "models": [{**model, "troubles": troubles}]}
    assert snapshot_of("http://x", warned, []).models[0].warning == "1 restart, 1,200 failed in 5 min"
    assert [(row.connections, row.requests) for row in found.guests] == [(None, None), (3, 40), (None, None)]
    text = drawn(found)
    assert "Connections Requests" in text
    assert "naiad 9 draining at http://x" in text
    assert "up 2 h" in text
    assert "given up" in text
    assert "50%" in text
    state["models"] = [{**model, "demand": "dormant", "serving": 0}]
    line = next(line for line in drawn(snapshot_of("http://x", state, [])).splitlines() if line.startswith("m "))
    assert line.split()[:3] == ["m", "1", "dormant"]


@pytest.mark.parametrize("condition", ["degraded", "no progress", "not serving", "refusing"])
def test_what_is_wrong_with_a_model_that_was_loaded_is_its_state(condition):
    server = {"version": "9", "state": "ready", "uptime_seconds": 1, "total_memory": 1, "now": {}}
    model = {"name": "m", "version": "1", "state": "READY", "reason": "", "serving": 1, "restarts": 0, "now": {}}
    guest = {"model": "m", "version": "1", "name": "m_0", "pid": 7, "state": "ready", "memory": None, "cpu": None}
    troubled = {**model, "condition": condition, "reason": "execute of 'm_0' stands still"}
    state = {"server": server, "models": [troubled, {**model, "name": "n", "condition": "ready"}], "processes": []}
    guests = [{**guest, "restarts": {}, "stalled_seconds": 75.0}]
    text = drawn(snapshot_of("http://x", state, guests))
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

    def read():
        if not readings:
            raise KeyboardInterrupt
        reading = readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading

    file = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        show(read, 0.0, Console(file=file, force_terminal=True, width=120, height=30))
    before, _, after = file.getvalue().partition("cannot reach a server at http://x: connection refused\x1b")
    assert "2 models ready, 1 failed" in before
    assert "busy_0 of busy 1" in after
    assert "start one" not in after

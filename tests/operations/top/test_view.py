"""`naiad top` in a terminal: keys sort and scroll, and everything fits 80 columns and 24 lines."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from naiad_operations.top.snapshot import GuestRow, ModelRow, ServerRow, Snapshot
from naiad_operations.top.view import View

SERVER = ServerRow(url="http://localhost:8000", version="1", state="ready")


def model(number, **fields):
    given = {"requests_per_second": 100.0 * number, "p50_ms": 1.0, "p95_ms": 50.0 - number, "waiting": 0}
    given |= {"memory": 50_000_000, "failures_per_second": 1.0, "tokens_per_second": 9.0, "restarts": number}
    return ModelRow(name=f"model_{number:02}", version="1", state="READY", **(given | fields))


def view(count=40):
    models = [model(number) for number in range(count)]
    guests = [GuestRow(model=row.name, version="1", name=f"{row.name}_0", pid=7, state="ready") for row in models]
    return View(Snapshot(server=SERVER, models=models, guests=guests))


def screen(shown, width=80, height=24):
    file = io.StringIO()
    console = Console(file=file, width=width, height=height)
    console.print(shown, end="")
    return file.getvalue().split("\n")


def names(lines):
    return [line.split()[0] for line in lines if re.match(r"model_\d\d ", line)]


def test_a_screen_of_80_by_24_shows_the_first_models_and_what_keys_do():
    lines = screen(view())
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert lines[2].split()[0] == "Model"
    assert names(lines) == [f"model_{number:02}" for number in range(20)]
    assert lines[-1].startswith("q quit  ↑↓ scroll  s/S sort: attention  r reverse")
    assert lines[-1].endswith("1-20 of 81")


def test_columns_without_room_are_left_out_and_no_figure_is_cut():
    lines = screen(view())
    assert lines[2].split() == [
        "Model",
        "Ver",
        "State",
        "req/s",
        "fail/s",
        *["p50", "ms", "p95", "ms"],
        "Queue",
        "Restarts",
        "Memory",
    ]
    assert "…" not in "".join(lines)
    assert screen(view(), width=60)[2].split() == ["Model", "State", "req/s", "fail/s", "p95", "ms", "Queue", "Memory"]
    assert "tokens/s" in screen(view(), width=120)[2]


def test_a_server_with_a_few_models_fits_without_scrolling():
    lines = screen(view(3))
    assert len(lines) == 24
    assert names(lines)[:3] == ["model_00", "model_01", "model_02"]
    assert "model_02_0 of model_02 1" in "\n".join(lines)
    assert lines[-1].rstrip().endswith("r reverse")


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        (["down"], "model_01"),
        (["down", "down", "up"], "model_01"),
        (["page down"], "model_19"),
        (["page down", "page up"], "model_00"),
        (["end", "home"], "model_00"),
        (["up"], "model_00"),
    ],
)
def test_keys_scroll_below_the_headers(keys, first):
    shown = view()
    screen(shown)
    for key in keys:
        assert not shown.press(key)
        lines = screen(shown)
    assert names(lines)[0] == first
    assert lines[2].split()[0] == "Model"


def test_the_last_line_is_reached_and_the_header_of_its_table_stays():
    shown = view()
    screen(shown)
    shown.press("end")
    lines = screen(shown)
    assert "model_39_0 of model_39 1" in lines[-2]
    assert lines[2].split()[0] == "Process"
    assert lines[-1].endswith("61-81 of 81") or lines[-1].endswith("62-81 of 81")


def test_s_sorts_by_the_next_column_with_the_largest_first_and_r_reverses():
    shown = view()
    screen(shown)
    orders = []
    for _ in range(6):
        shown.press("s")
        lines = screen(shown)
        orders.append((re.search(r"sort: (.*?)  r ", lines[-1])[1], names(lines)[0]))
    assert orders == [
        ("Model ↑", "model_00"),
        ("Ver ↑", "model_00"),
        ("State ↑", "model_00"),
        ("req/s ↓", "model_39"),
        ("fail/s ↓", "model_39"),
        ("p50 ms ↓", "model_39"),
    ]
    shown.press("s")
    assert names(screen(shown))[0] == "model_00"
    shown.press("r")
    lines = screen(shown)
    assert "p95 ms ↑" in lines[-1]
    assert names(lines)[0] == "model_39"
    shown.press("S")
    shown.press("S")
    assert "fail/s ↓" in screen(shown)[-1]


def test_unknown_figures_are_last_in_both_orders():
    shown = View(Snapshot(server=SERVER, models=[model(1, p95_ms=None), model(2), model(3)], guests=()))
    screen(shown)
    for _ in range(7):
        shown.press("s")
    assert "p95 ms ↓" in screen(shown)[-1]
    assert names(screen(shown)) == ["model_02", "model_03", "model_01"]
    shown.press("r")
    assert names(screen(shown)) == ["model_03", "model_02", "model_01"]


def test_q_ends_and_other_keys_do_nothing():
    shown = view()
    assert shown.press("q")
    assert not shown.press("x")
    assert not shown.press("")


def test_a_model_with_warnings_says_which():
    shown = View(Snapshot(server=SERVER, models=[model(1, warning="3 restarts, 12 failed in 5 min")], guests=()))
    assert "model_01 1: 3 restarts, 12 failed in 5 min" in "\n".join(screen(shown))


@pytest.mark.parametrize(("width", "height"), [(40, 10), (20, 8), (200, 60)])
def test_any_size_of_a_terminal_is_filled_and_not_left(width, height):
    lines = screen(view(), width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width

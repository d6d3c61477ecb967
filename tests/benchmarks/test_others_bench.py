"""`python -m bench.others`: its requests, its section of the page, and servers that do not start."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from bench.others import __main__ as others
from bench.others.contestants import ADD_SUB, BINARY, CONTESTANTS, FOREST, IN_JSON, JOBS, SUMS, Contestant, Place
from bench.results import Results
from bench.scaling.load import Request

OPTIONS = argparse.Namespace(rounds=3, seconds=5.0, jobs=[ADD_SUB])


def contestant(*command: str) -> Contestant:
    return Contestant(
        "Other", (), "other", "one worker", lambda job, place: command, lambda job: Request(f"/{job}", b"{}", {})
    )


@pytest.mark.parametrize("each", CONTESTANTS, ids=lambda each: each.name)
def test_each_server_is_asked_for_its_jobs(each):
    for job in each.jobs:
        request = each.request(job)
        assert (ADD_SUB if job in SUMS else job) in request.path
        if job in (*IN_JSON, FOREST):
            assert json.loads(request.body)
        else:
            head = int(request.headers["Inference-Header-Content-Length"])
            assert len(json.loads(request.body[:head])["inputs"]) == 2
            assert len(request.body) - head == 2 * 4 * SUMS[job]


def test_naiad_does_every_job_and_each_sum_has_its_ratios_to_the_floor_and_triton():
    ours, floor, triton = CONTESTANTS[:3]
    assert tuple(ours.jobs) == JOBS
    results = Results()
    for each, cpu in ((ours, 300.0), (floor, 200.0), (triton, 600.0)):
        results.add("binary, 1 client", each.name, {"requests/s": 1.0, "p50": 1.0, "cpu": cpu})
    options = argparse.Namespace(rounds=3, seconds=5.0, jobs=[BINARY])
    made = others.section(
        [ours, floor, triton], dict.fromkeys((ours.name, floor.name, triton.name), ""), results, options
    )
    assert "| naiad / floor |  | 1.00 x | 1.00 x | 1.50 x | - | - | - |" in made
    assert "| naiad / triton |  | 1.00 x | 1.00 x | 0.50 x | - | - | - |" in made


def test_the_section_has_a_row_for_each_server_and_dashes_for_what_was_not_measured():
    results = Results()
    results.add("add_sub, 1 client", "Other", {"requests/s": 1234.5, "p50": 810.0, "cpu": 500.0})
    made = others.section([contestant()], {"Other": "1.2"}, results, OPTIONS)
    assert "| Other 1.2 | one worker | 1,234 | 0.81 ms | 500 | - | - | - |" in made
    assert made.startswith(others.OTHERS_BEGIN)
    assert made.endswith(others.OTHERS_END)


def test_a_server_that_exits_is_an_error_with_the_folder_of_the_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(others, "FOLDER", tmp_path)
    broken = contestant(sys.executable, "-c", "raise SystemExit('no such module')")
    place = Place(Path(sys.executable), tmp_path / "forest", tmp_path, 1)
    with (
        others._running(broken, ADD_SUB, place) as process,
        pytest.raises(SystemExit, match=r"no answer to /add_sub .*logs"),
    ):
        others._wait_for_answer(place.port, broken.request(ADD_SUB), process)
    assert "no such module" in (tmp_path / "Other.log").read_text()

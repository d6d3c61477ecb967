"""The harness computes, selects and reports what it says; the servers themselves are measured by `make bench`."""

from __future__ import annotations

import cProfile
import pstats
import sys
import tarfile
from typing import NamedTuple

import pytest

from bench import cases, environment, json_requests, perf, quiet, report, repository, settling
from bench.profile import per_request
from bench.reference import install
from bench.results import OURS, THEIRS, Results
from bench.servers import Program

REPORT = """\
Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p95 latency,p99 latency
16,3547.57,86,4258,6150,6788,9216
"""


def results_of(case: str, ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> Results:
    results = Results()
    for server, metrics in ((OURS, ours), (THEIRS, theirs)):
        for name, values in metrics.items():
            for value in values:
                results.add(case, server, {name: value})
    return results


def test_figures_are_read_from_perf_analyzers_report():
    assert perf.parse(REPORT) == {"throughput": 3547.57, "p50": 4258.0, "p95": 6788.0}


def test_report_without_measurements_is_an_error_that_shows_it():
    with pytest.raises(ValueError, match="got 0:\nConcurrency"):
        perf.parse(REPORT.splitlines()[0])


def test_ratio_is_the_median_of_turns_so_that_neither_outliers_nor_a_slower_machine_count():
    results = results_of("c", {"throughput": [30, 16, 8, 900]}, {"throughput": [10, 5, 2.5, 1]})
    assert results.ratio("c", "throughput") == 3.2


class Times(NamedTuple):
    """Readings of all processors, in seconds."""

    user: float
    idle: float
    steal: float
    guest: float


def test_disturbed_turns_are_repeated_a_limited_number_of_times(monkeypatch):
    stolen = iter([0.0, 0.5, 0.01, 0.9, 0.8, 0.6])
    at = [Times(0.0, 0.0, 0.0, 0.0)]

    def turn():
        share = next(stolen)
        at[0] = Times(at[0].user + 60, at[0].idle + 40 - 100 * share, at[0].steal + 100 * share, at[0].guest + 50)
        return {OURS: {"throughput": share}, THEIRS: {"throughput": 1.0}}

    monkeypatch.setattr(quiet.psutil, "cpu_times", lambda: at[0])
    results = Results()
    quiet.take_turns(results, "c", 3, turn)

    # 0.5, 0.9 and 0.8 are put aside, as many as turns that count; then one counts whatever it is.
    assert [sample["throughput"] for sample in results.samples["c"][OURS]] == [0.0, 0.01, 0.6]


def test_a_machine_without_figures_of_stolen_time_is_measured_without_them():
    class Untold(NamedTuple):
        user: float

    assert quiet.stolen_share(Untold(0.0), Untold(1.0)) == 0


@pytest.mark.parametrize("metric", ["throughput", "unmeasured"])
def test_a_metric_of_one_server_alone_has_no_ratio(metric):
    assert results_of("c", {"throughput": [1]}, {}).ratio("c", metric) is None


def test_every_target_names_a_case_that_is_measured():
    assert {target.case for target in cases.TARGETS} <= set(cases.NAMES)


@pytest.mark.parametrize(("at_least", "ratio", "met"), [(True, 1.7, True), (True, 1.69, False), (False, 1.8, False)])
def test_target_is_met_on_its_own_side_of_the_bound(at_least, ratio, met):
    target = cases.Target("p", "c", "m", 1.7, at_least=at_least)
    assert target.is_met_by(ratio) is met


def test_page_says_which_targets_are_met_and_which_are_not():
    results = results_of("add_sub-http-16", {"throughput": [160]}, {"throughput": [100]})
    page = report.render(results, "settings", "3.11.2", "prose")
    assert "| HTTP throughput, 16 clients | at least 1.7 x | 1.60 x | **no** |" in page
    assert "| memory (PSS) per idle instance | at most 1.0 x | not measured |  |" in page


def test_text_written_by_hand_survives_a_rewrite_of_the_page(tmp_path):
    """People explain the figures by hand; a new run must not cost them that."""
    page = tmp_path / "benchmarks.md"
    report.write(page, Results(), "the old settings", "3.11.2")
    page.write_text(page.read_text().replace("Not written yet.", "Half of it is\nthe kernel's."))
    report.write(page, Results(), "the new settings", "3.11.2")
    assert "Half of it is\nthe kernel's.\n<!-- end of prose -->" in page.read_text()
    assert "the new settings" in page.read_text()
    assert "the old settings" not in page.read_text()


@pytest.mark.parametrize(("native", "verdict"), [(250.0, "1.25 x | yes"), (300.0, "1.50 x | **no**")])
def test_a_backend_in_c_is_compared_with_the_same_model_in_python(native, verdict):
    results = Results()
    for name, microseconds in (("native-http-1", native), ("native-python-http-1", 200.0)):
        results.add(name, OURS, {"p50": microseconds})
        results.add(name, THEIRS, {"p50": 100.0})
    page = report.render(results, "", "", "")
    assert f"an echo in C beside one in Python, one client | at most 1.25 x | {verdict} |" in page
    assert "naiad / naiad" not in report.render(Results(), "", "", "")


def test_repositories_hold_a_config_and_a_model_for_each_name(tmp_path):
    repository.write_load_models(tmp_path)
    asked = {load.model for load in cases.LOADS.values()}
    asked |= {request.path.split("/")[3] for load in json_requests.LOADS.values() for request in load.requests}
    assert asked | {"called"} == {model.name for model in tmp_path.iterdir()}
    with_code = {model.name for model in tmp_path.iterdir() if (model / "1" / "model.py").exists()}
    without_code = {"ensemble", "native"} if repository.COMPILER else {"ensemble"}
    assert asked | {"called"} == with_code | without_code
    assert "dims: [ 4194304 ]" in (tmp_path / "identity_16MB" / "config.pbtxt").read_text()


def test_reference_gets_its_stub_into_the_model_with_an_environment(tmp_path):
    stub = tmp_path / "triton_python_backend_stub"
    stub.write_bytes(b"ELF")
    repository.write_with_environment(tmp_path / "r", tmp_path / "e.tar.gz", stub)
    model = tmp_path / "r" / "packed"
    assert (model / stub.name).exists()
    assert f'string_value: "{tmp_path}/e.tar.gz"' in (model / "config.pbtxt").read_text()


def test_a_reference_named_by_the_user_is_never_installed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("NAIAD_BENCH_REFERENCE", str(tmp_path))
    with pytest.raises(SystemExit, match="READY is missing"):
        install(tmp_path / "elsewhere")


def test_python_of_an_environment_is_read_from_its_archive(tmp_path, monkeypatch):
    archive, member = tmp_path / "e.tar.gz", tmp_path / "os.py"
    member.touch()
    with tarfile.open(archive, "w:gz") as packing:
        packing.add(member, "lib/python3.12/os.py")
    monkeypatch.setenv("NAIAD_BENCH_ENVIRONMENT", str(archive))
    assert environment.packed_environment(tmp_path) == environment.Packed(archive, "3.12")


def test_servers_inherit_no_python_settings_of_this_shell(tmp_path, monkeypatch):
    """PYTHONDONTWRITEBYTECODE in the shell would make every start compile every module."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environ = Program("naiad", [sys.executable], {"A": "b"}).child_environ(tmp_path)
    assert not [name for name in environ if name.startswith("PYTHON")]
    assert (environ["XDG_CACHE_HOME"], environ["A"]) == (str(tmp_path), "b")


def test_profile_counts_what_ran_for_requests_and_leaves_out_the_start():
    def answer():
        return sum(range(50))

    def start():
        return sorted(range(50))

    profile = cProfile.Profile()
    profile.runcall(start)
    for _ in range(10):
        profile.runcall(answer)
    entries = per_request(pstats.Stats(profile), 10)
    assert any(name.endswith(" answer") for name in entries)
    assert not any(name.endswith(" start") for name in entries)


def test_a_start_waits_until_removed_files_slow_nothing_down(monkeypatch):
    now = [1000.0]
    slept: list[float] = []
    monkeypatch.setattr(settling.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(settling.time, "sleep", slept.append)
    monkeypatch.setattr(settling.os, "sync", lambda: None)
    monkeypatch.setattr(settling, "_have_memory", lambda: None)
    rest = settling.Rest(60.0)

    now[0] += 20
    rest.wait()
    now[0] += 100
    rest.wait()
    rest.removed()
    rest.wait()

    assert slept == [40.0, 0.0, 60.0]

"""Metrics that models make, on the page of a real server."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving.written import RUNS_CODE, evaluate, write_model
from support.server import HOST, ServerProcess
from support.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    for name in ("a", "b"):
        write_model(folder / "models", name)
    with ServerProcess(folder / "models", work=folder) as running:
        yield running


def page(server: ServerProcess) -> str:
    connection = http.client.HTTPConnection(HOST, server.metrics_port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def lines_of(server: ServerProcess, name: str) -> list[str]:
    return [line for line in page(server).splitlines() if name in line]


def make(server: ServerProcess, model: str, name: str, kind: str = "COUNTER") -> None:
    kind = f"pb_utils.MetricFamily.{kind}"
    assert evaluate(server, model, f"{name} = pb_utils.MetricFamily('{name}', 'of {model}', {kind})") == "done"


def test_a_counter_is_on_the_page_as_soon_as_the_request_is_answered(server):
    make(server, "a", "soon")
    evaluate(server, "a", "x = soon.Metric({'b': '2', 'a': '1'})")
    assert lines_of(server, "soon") == [
        "# HELP soon of a",
        "# TYPE soon counter",
        'soon{a="1",b="2"} 0',
    ]
    for expected in (2, 4, 6):
        evaluate(server, "a", "[x.increment(1) for _ in range(2)]")
        assert lines_of(server, "soon{") == [f'soon{{a="1",b="2"}} {expected}']
    evaluate(server, "a", "x.increment(0.25)")
    assert lines_of(server, "soon{") == ['soon{a="1",b="2"} 6.25']
    assert evaluate(server, "a", "x.value()") == "6.25"


def test_a_histogram_has_the_series_of_the_reference_in_its_order(server):
    make(server, "a", "took", "HISTOGRAM")
    evaluate(server, "a", "h = took.Metric({'m': 'a'}, [0.1, 1, 2.5])")
    evaluate(server, "a", "[h.observe(v) for v in (0.1, 0.5, 100, -1)]")
    assert lines_of(server, "took") == [
        "# HELP took of a",
        "# TYPE took histogram",
        'took_count{m="a"} 4',
        'took_sum{m="a"} 99.6',
        'took_bucket{m="a",le="0.1"} 2',
        'took_bucket{m="a",le="1"} 3',
        'took_bucket{m="a",le="2.5"} 3',
        'took_bucket{m="a",le="+Inf"} 4',
    ]


def test_one_name_and_labels_are_one_metric_in_all_models(server):
    for model in ("a", "b"):
        make(server, model, "common", "GAUGE")
        evaluate(server, model, "g = common.Metric({'x': 'y'})")
    evaluate(server, "a", "g.set(10)")
    evaluate(server, "b", "g.increment(-2.5)")
    assert evaluate(server, "a", "g.value()") == "7.5"
    assert lines_of(server, "common") == ["# HELP common of a", "# TYPE common gauge", 'common{x="y"} 7.5']
    text = evaluate(server, "b", "pb_utils.MetricFamily('common', '', pb_utils.MetricFamily.COUNTER)")
    assert text == (
        "TritonModelException: Error when creating MetricFamily: Failed to process the request for model 'b_0', "
        "message: Family name already exists with different type"
    )
    evaluate(server, "a", "del common")
    assert evaluate(server, "b", "g.value()") == "7.5"
    evaluate(server, "b", "del common")
    assert lines_of(server, "common") == []


def test_metrics_stay_while_their_family_does(server):
    make(server, "a", "family")
    evaluate(server, "a", "family.Metric({'n': '1'}).increment(3)")
    assert lines_of(server, "family{") == ['family{n="1"} 3']
    evaluate(server, "a", "kept = family.Metric({'n': '1'})")
    assert evaluate(server, "a", "kept.value()") == "3.0"
    evaluate(server, "a", "del family")
    assert lines_of(server, "family") == []
    assert evaluate(server, "a", "kept.value()") == (
        "TritonModelException: Failed to get metric value: Invalid metric operation as the corresponding "
        "'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER its corresponding 'Metric' "
        "objects have been deleted."
    )


def test_metrics_of_an_exited_guest_are_removed(tmp_path):
    for name in ("dies", "lives"):
        write_model(tmp_path / "models", name)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        for model in ("dies", "lives"):
            make(server, model, "shared")
            evaluate(server, model, "shared.Metric().increment(1)")
        make(server, "dies", "mortal")
        evaluate(server, "dies", "mortal.Metric().increment(1)")
        assert lines_of(server, "mortal ")[-1] == "mortal 1"
        [pid] = {evaluate(server, "dies", "os.getpid()")}
        document = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": ["os._exit(1)"]}]}
        assert server.post("/v2/models/dies/infer", document).status == 500
        assert lines_of(server, "mortal") == []
        assert lines_of(server, "shared")[-1] == "shared 2"
        until(lambda: server.get("/v2/models/dies/ready").status == 200, "the next guest")
        assert evaluate(server, "dies", "os.getpid()") != pid


def test_a_name_of_the_servers_own_is_one_family_on_the_page(server):
    make(server, "a", "nv_inference_count")
    evaluate(server, "a", "nv_inference_count.Metric({'mine': 'yes'}).increment(1)")
    text = page(server)
    assert text.count("# TYPE nv_inference_count ") == 1
    assert 'nv_inference_count{mine="yes"} 1\n' in text
    list(text_string_to_metric_families(text))
    evaluate(server, "a", "del nv_inference_count")


def test_the_page_survives_odd_texts_and_numbers(server):
    code = "odd = pb_utils.MetricFamily('odd', 'two\\nlines \\\\ and \"quotes\"', pb_utils.MetricFamily.GAUGE)"
    assert evaluate(server, "a", code) == "done"
    evaluate(server, "a", "o = odd.Metric({'l': 'a\\nb\"c\\\\d\\u00e9\\ud800'})")
    for value, shown in (("float('nan')", "NaN"), ("float('inf')", "+Inf"), ("1e17", "1e+17"), ("-3.0", "-3")):
        evaluate(server, "a", f"o.set({value})")
        assert lines_of(server, "odd{")[0].endswith(f" {shown}")
        [family] = [f for f in text_string_to_metric_families(page(server)) if f.name == "odd"]
        assert family.documentation == 'two\nlines \\ and "quotes"'
        [sample] = family.samples
        assert sample.labels["l"].startswith('a\nb"c\\d\u00e9')


def test_models_use_metrics_also_without_a_metrics_port(tmp_path):
    initialize = """
def initialize(self, args):
    self.family = pb_utils.MetricFamily("early", "", pb_utils.MetricFamily.COUNTER)
    self.counter = self.family.Metric()
    self.counter.increment(2)
    globals()["counter"] = self.counter
"""
    write_model(tmp_path / "models", "m", initialize + RUNS_CODE)
    with ServerProcess(tmp_path / "models", "--allow-metrics=false", work=tmp_path) as server:
        assert evaluate(server, "m", "counter.value()") == "2.0"


def test_a_models_metrics_go_when_it_is_unloaded(tmp_path: Path):
    write_model(tmp_path / "models", "m")
    with ServerProcess(tmp_path / "models", "--model-control-mode=explicit", "--load-model=m", work=tmp_path) as server:
        make(server, "m", "leaving")
        evaluate(server, "m", "leaving.Metric().increment(1)")
        assert lines_of(server, "leaving")
        assert server.post("/v2/repository/models/m/unload").status == 200
        until(lambda: not lines_of(server, "leaving"), "its metrics to go")

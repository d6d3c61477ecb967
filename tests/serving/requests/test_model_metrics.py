"""Metrics that models make, on the page of a real server."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving.written import evaluate, send_code, write_model
from support.server import ServerProcess
from support.waiting import until


@pytest.fixture(scope="module")
def server(work):
    for name in ("a", "b"):
        write_model(work / "models", name)
    with ServerProcess(work / "models", work=work) as running:
        yield running


def lines_of(server: ServerProcess, name: str) -> list[str]:
    return [line for line in server.metrics().splitlines() if name in line]


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
        assert send_code(server, "dies", "os._exit(1)").status == 500
        assert lines_of(server, "mortal") == []
        assert lines_of(server, "shared")[-1] == "shared 2"
        until(lambda: server.get("/v2/models/dies/ready").status == 200, "the next guest")
        assert evaluate(server, "dies", "os.getpid()") != pid


def test_a_name_of_the_servers_own_is_one_family_on_the_page(server):
    make(server, "a", "nv_inference_count")
    evaluate(server, "a", "nv_inference_count.Metric({'mine': 'yes'}).increment(1)")
    text = server.metrics()
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
        [family] = [f for f in text_string_to_metric_families(server.metrics()) if f.name == "odd"]
        assert family.documentation == 'two\nlines \\ and "quotes"'
        [sample] = family.samples
        assert sample.labels["l"].startswith('a\nb"c\\d\u00e9')

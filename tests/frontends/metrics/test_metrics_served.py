"""The metrics page of a real server: what is chosen by flags and by models, and what is told of guests."""

from __future__ import annotations

import os
import signal

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving.contract import is_end
from serving.written import evaluate, send_code, write_model
from support.server import ServerProcess

DECOUPLED = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for _ in range(3):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b"1"], object))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ERRS = """
def execute(self, requests):
    return [pb_utils.InferenceResponse([], error=pb_utils.TritonError("no")) for _ in requests]
"""
DECOUPLES = "model_transaction_policy { decoupled: true }\n"
OWN_BUCKETS = """
model_metrics { metric_control: [ {
  metric_identifier { family: "nv_inference_first_response_histogram_ms" }
  histogram_options { buckets: [ 0.5, 60000 ] }
} ] }
"""
CHOSEN = (
    "--metrics-config=summary_latencies=true",
    "--metrics-config=summary_quantiles=0.5:0.05,1:0",
    "--metrics-config=histogram_latencies=true",
    "--metrics-config=counter_latencies=false",
    "--allow-cpu-metrics=false",
)


@pytest.fixture(scope="module")
def server(work):
    models = work / "models"
    write_model(models, "plain")
    write_model(models, "errs", ERRS)
    write_model(models, "cached", config="response_cache { enable: true }\n")
    write_model(models, "decoupled", DECOUPLED, config=DECOUPLES)
    write_model(models, "buckets", DECOUPLED, config=DECOUPLES + OWN_BUCKETS)
    with ServerProcess(models, *CHOSEN, "--cache-config=local,size=100000", work=work) as running:
        yield running


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usual")
    write_model(folder / "models", "plain")
    write_model(folder / "models", "dies")
    with ServerProcess(folder / "models", work=folder) as running:
        yield running


def values(server: ServerProcess, part: str) -> dict[str, float]:
    """Values by series, of those with *part* in them."""
    lines = [line.rsplit(" ", 1) for line in server.metrics().splitlines() if part in line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def ask(server: ServerProcess, model: str, code: str = "1") -> int:
    return send_code(server, model, code).status


def stream(server: ServerProcess, model: str) -> None:
    from serving.contract import Stream

    with Stream(server) as opened:
        opened.send(model, "1")
        opened.wait(lambda events: events and is_end(events[-1]), "end")


def test_summaries_tell_count_sum_and_the_quantiles_that_were_asked_for(server):
    before = values(server, 'model="plain"')['nv_inference_request_summary_us_count{model="plain",version="1"}']
    for _ in range(3):
        ask(server, "plain")
    found = values(server, '_summary_us{model="plain"')
    for part in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        start = f'nv_inference_{part}_summary_us{{model="plain",version="1",quantile='
        assert 0 <= found[start + '"0.5"}'] <= found[start + '"1"}']
    assert len(found) == 10
    counts = values(server, '_summary_us_count{model="plain"')
    assert set(counts.values()) == {before + 3}
    text = server.metrics()
    assert "# TYPE nv_inference_request_summary_us summary\n" in text
    assert (
        "# HELP nv_inference_queue_summary_us Summary of inference queuing duration in microseconds (includes cached "
        "requests)\n"
    ) in text


def test_a_model_with_a_cache_has_summaries_of_its_hits_and_misses(server):
    for _ in range(3):
        ask(server, "cached")
    assert values(server, 'nv_cache_hit_summary_per_model_count{model="cached"') == {
        'nv_cache_hit_summary_per_model_count{model="cached",version="1"}': 2
    }
    assert values(server, 'nv_cache_miss_summary_per_model_count{model="cached"') == {
        'nv_cache_miss_summary_per_model_count{model="cached",version="1"}': 1
    }
    assert values(server, 'nv_inference_request_summary_us_count{model="cached"') == {}


@pytest.mark.parametrize(
    ("model", "bounds"), [("decoupled", ["100", "500", "2000", "5000", "+Inf"]), ("buckets", ["0.5", "60000", "+Inf"])]
)
def test_first_responses_are_a_histogram_with_the_models_own_buckets(server, model, bounds):
    for _ in range(2):
        stream(server, model)
    found = values(server, f'nv_inference_first_response_histogram_ms_bucket{{model="{model}"')
    assert [name.split('le="')[1].rstrip('"}') for name in found] == bounds
    assert list(found.values())[-2:] == [2, 2]
    assert "# TYPE nv_inference_first_response_histogram_ms histogram\n" in server.metrics()


def test_an_error_that_a_model_answers_with_is_a_success_as_in_the_reference_and_counted_apart(server):
    assert ask(server, "errs") == 500
    assert values(server, 'nv_inference_request_success{model="errs"') == {
        'nv_inference_request_success{model="errs",version="1"}': 1
    }
    assert values(server, 'naiad_error_responses_total{model="errs"') == {
        'naiad_error_responses_total{model="errs",version="1"}': 1
    }
    assert set(values(server, 'nv_inference_request_failure{model="errs"').values()) == {0}


def test_processor_metrics_are_absent_if_disabled(server, usual):
    assert "nv_cpu" not in server.metrics()
    assert {"nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"} <= values(
        usual, "nv_cpu"
    ).keys()


def test_summaries_and_histograms_are_absent_unless_enabled(usual):
    ask(usual, "plain")
    text = usual.metrics()
    assert "summary" not in text
    assert "histogram" not in text
    assert (
        values(usual, 'nv_model_load_duration_secs{model="plain"')[
            'nv_model_load_duration_secs{model="plain",version="1"}'
        ]
        > 0
    )


def test_guests_have_metrics_of_memory_and_of_exits_by_reason(usual):
    pid = int(evaluate(usual, "dies", "os.getpid()"))
    labels = 'instance="dies_0",{}model="dies",version="1"'
    memory = values(usual, "naiad_guest_memory_bytes")[
        "naiad_guest_memory_bytes{" + labels.format('kind="resident",') + "}"
    ]
    assert memory > 1_000_000
    assert values(usual, "naiad_guest_restarts_total") == {}
    os.kill(pid, signal.SIGKILL)
    reason = 'instance="dies_0",model="dies",reason="SIGKILL",version="1"'
    usual.wait_for(lambda: values(usual, "naiad_guest_restarts_total"), "the restart to be counted")
    assert values(usual, "naiad_guest_restarts_total") == {f"naiad_guest_restarts_total{{{reason}}}": 1}
    assert values(usual, "naiad_guests_alive") == {
        'naiad_guests_alive{model="dies",version="1"}': 1,
        'naiad_guests_alive{model="plain",version="1"}': 1,
    }
    assert int(evaluate(usual, "dies", "os.getpid()")) != pid


def test_segments_and_the_store_have_metrics(usual):
    assert values(usual, 'naiad_input_segment_used_bytes{instance="plain_0"') == {
        'naiad_input_segment_used_bytes{instance="plain_0",model="plain",version="1"}': 0
    }
    assert values(usual, 'naiad_output_blocks_lent{instance="plain_0"') == {
        'naiad_output_blocks_lent{instance="plain_0",model="plain",version="1"}': 0
    }
    assert values(usual, "naiad_environment_store").keys() == {
        "naiad_environment_store_bytes",
        "naiad_environment_store_entries",
    }


def test_prometheus_reads_every_page(server, usual):
    for each in (server, usual):
        names = {family.name for family in text_string_to_metric_families(each.metrics())}
        assert {"nv_inference_count", "naiad_guests_alive", "nv_pinned_memory_pool_total_bytes"} <= names

"""What is counted, under which names, and how it is written."""

from __future__ import annotations

import psutil
import pytest
from fakes.engine import sample_statistics
from prometheus_client.parser import text_string_to_metric_families

from naiad.core.errors import (
    FatalRequestError,
    MalformedRequestError,
    NaiadError,
    NotReadyError,
    QueueFullError,
    UnsupportedRequestError,
)
from naiad.engine.statistics.counters import RefusalReason, reason_of
from naiad.frontends.metrics import naiad_families, triton_families
from naiad.frontends.metrics.families import Family, MetricType, Sample, render
from naiad.protocol.metadata import MemoryUse, ModelCondition, ModelStatistics

LABELS = 'model="add_sub",version="1"'


def test_the_reference_prints_the_same_lines_for_the_same_statistics():
    """Names, help texts, kinds, order and labels are facts of the reference (its 2.51 printed them)."""
    text = render(
        triton_families.model_families([ModelStatistics(name="add_sub", version="1", inference_count=26)])
    ).decode()
    assert (
        text
        == f"""\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{{{LABELS}}} 0
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{{model="add_sub",reason="OTHER",version="1"}} 0
nv_inference_request_failure{{model="add_sub",reason="BACKEND",version="1"}} 0
nv_inference_request_failure{{model="add_sub",reason="CANCELED",version="1"}} 0
nv_inference_request_failure{{model="add_sub",reason="REJECTED",version="1"}} 0
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{{{LABELS}}} 26
# HELP nv_inference_exec_count Number of model executions performed (does not include cached requests)
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{{{LABELS}}} 0
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{{{LABELS}}} 0
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{{LABELS}}} 0
# HELP nv_inference_compute_input_duration_us Cumulative compute input duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{{{LABELS}}} 0
# HELP nv_inference_compute_infer_duration_us Cumulative compute inference duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{{{LABELS}}} 0
# HELP nv_inference_compute_output_duration_us Cumulative inference compute output duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{{{LABELS}}} 0
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{{{LABELS}}} 0
# HELP nv_model_load_duration_secs Model load time in seconds
# TYPE nv_model_load_duration_secs gauge
nv_model_load_duration_secs{{{LABELS}}} 0
# HELP naiad_error_responses_total Number of requests whose response was an error of the model; they count as successful
# TYPE naiad_error_responses_total counter
naiad_error_responses_total{{{LABELS}}} 0
"""
    )


def values(families):
    return {(family.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_every_statistic_has_its_metric_and_durations_are_in_microseconds():
    found = values(triton_families.model_families([sample_statistics("m", "3")]))
    assert found == {
        ("nv_inference_request_success", "m", "3"): 20,
        ("nv_inference_request_failure", "m", "OTHER", "3"): 3,
        ("nv_inference_request_failure", "m", "BACKEND", "3"): 0,
        ("nv_inference_request_failure", "m", "CANCELED", "3"): 0,
        ("nv_inference_request_failure", "m", "REJECTED", "3"): 0,
        ("nv_inference_count", "m", "3"): 21,
        ("nv_inference_exec_count", "m", "3"): 11,
        ("nv_inference_request_duration_us", "m", "3"): 20_000,
        ("nv_inference_queue_duration_us", "m", "3"): 2_000,
        ("nv_inference_compute_input_duration_us", "m", "3"): 4_000,
        ("nv_inference_compute_infer_duration_us", "m", "3"): 5_000,
        ("nv_inference_compute_output_duration_us", "m", "3"): 6_000,
        ("nv_cache_num_hits_per_model", "m", "3"): 1,
        ("nv_cache_num_misses_per_model", "m", "3"): 2,
        ("nv_cache_hit_duration_per_model", "m", "3"): 0,
        ("nv_cache_miss_duration_per_model", "m", "3"): 0,
        ("nv_inference_pending_request_count", "m", "3"): 4,
        ("nv_model_load_duration_secs", "m", "3"): 0.5,
        ("naiad_error_responses_total", "m", "3"): 5,
    }


def test_a_model_is_ready_unless_an_instance_fails_or_requests_are_refused():
    found = naiad_families.refusal_families(
        [
            ModelStatistics(name=condition.value, version="1", condition=condition, refusals={"fatal": number})
            for number, condition in enumerate(ModelCondition)
        ],
        {"unknown_model": 9},
    )
    assert values(found) == {
        ("naiad_requests_refused_total", "ready", "fatal", "1"): 0,
        ("naiad_requests_refused_total", "degraded", "fatal", "1"): 1,
        ("naiad_requests_refused_total", "no progress", "fatal", "1"): 2,
        ("naiad_requests_refused_total", "not serving", "fatal", "1"): 3,
        ("naiad_requests_refused_total", "refusing", "fatal", "1"): 4,
        ("naiad_requests_refused_total", "unknown_model"): 9,
        ("naiad_model_ready", "ready", "1"): 1,
        ("naiad_model_ready", "degraded", "1"): 0,
        ("naiad_model_ready", "no progress", "1"): 1,
        ("naiad_model_ready", "not serving", "1"): 0,
        ("naiad_model_ready", "refusing", "1"): 0,
    }
    assert b'naiad_model_ready{model="ready",version="1"} 1\n' in render(found)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FatalRequestError("x"), RefusalReason.FATAL),
        (MalformedRequestError("x"), RefusalReason.INVALID),
        (UnsupportedRequestError("x"), RefusalReason.INVALID),
        (QueueFullError("x"), RefusalReason.QUEUE_FULL),
        (NotReadyError("x"), RefusalReason.NOT_READY),
        (NaiadError("x"), RefusalReason.OTHER),
    ],
)
def test_a_refusal_has_the_reason_of_its_error(error, reason):
    assert reason_of(error) is reason


def test_series_exist_from_load_and_vanish_with_the_model():
    two = [ModelStatistics(name="a", version="1"), ModelStatistics(name="a", version="2")]
    assert ("nv_inference_count", "a", "2") in values(triton_families.model_families(two))
    assert render(triton_families.model_families([])) == b""


def test_models_without_a_cache_have_no_cache_series():
    assert b"nv_cache" not in render(triton_families.model_families([ModelStatistics(name="a", version="1")]))


def test_without_counters_of_latencies_requests_are_still_counted():
    """The reference's then stay at zero, which is of no use."""
    names = {
        name for name, *_ in values(triton_families.model_families([sample_statistics("m")], with_durations=False))
    }
    assert {"nv_inference_request_success", "nv_inference_count"} <= names
    assert not [name for name in names if "duration_us" in name or "cache" in name]


def test_tags_of_a_model_are_labels_of_all_its_series_in_the_references_order():
    tagged = ModelStatistics(name="m", version="1", tags={"b": "x", "A": "y"})
    (line, *_) = [
        line for line in render(triton_families.model_families([tagged])).decode().splitlines() if "BACKEND" in line
    ]
    assert line == 'nv_inference_request_failure{_A="y",_b="x",model="m",reason="BACKEND",version="1"} 0'


def test_a_namespace_is_a_label_if_the_server_has_namespaces():
    named = ModelStatistics(name="m", version="1", namespace="/models/a", tags={"z": "x"})
    assert b'nv_inference_count{_z="x",model="m",namespace="/models/a",version="1"} 0' in render(
        triton_families.model_families([named])
    )


def test_the_pool_of_pinned_memory_is_what_guests_have_registered():
    reported = (MemoryUse("CPU_PINNED", 0, 5), MemoryUse("GPU", 1, 7))
    models = [ModelStatistics(name=name, version="1", memory_usage=reported) for name in ("m", "n")]
    for statistics, size in (([], 0), (models, 10)):
        assert values(triton_families.memory_pool_families(statistics)) == {
            ("nv_pinned_memory_pool_total_bytes",): size,
            ("nv_pinned_memory_pool_used_bytes",): size,
        }


def test_memory_that_guests_reported_is_listed_by_its_type():
    model = ModelStatistics(name="m", version="1", memory_usage=(MemoryUse("GPU", 1, 7),))
    (family,) = naiad_families.reported_memory_families([model])
    assert render([family]).decode().splitlines()[-1] == (
        'naiad_model_reported_memory_bytes{memory="GPU",memory_id="1",model="m",version="1"} 7'
    )
    assert naiad_families.reported_memory_families([ModelStatistics(name="m", version="1")]) == []


def test_memory_of_the_machine_and_a_utilization_from_0_to_1_are_measured():
    found = values(triton_families.system_families())
    assert found["nv_cpu_memory_total_bytes",] == psutil.virtual_memory().total
    assert 0 < found["nv_cpu_memory_used_bytes",] < found["nv_cpu_memory_total_bytes",]
    assert 0 <= found["nv_cpu_utilization",] <= 1


@pytest.mark.parametrize("name", ['with "quotes"', "back\\slash", "two\nlines", "ünïcödé", "{}, ="])
def test_labels_with_any_text_are_read_back_by_prometheus_own_parser(name):
    family = Family("m", "a\nb\\c", MetricType.GAUGE, [Sample({"model": name, "other": ""}, 0.5)])
    (parsed,) = text_string_to_metric_families(render([family]).decode())
    assert parsed.samples[0].labels == {"model": name, "other": ""}
    assert parsed.samples[0].value == 0.5
    assert parsed.documentation == "a\nb\\c"
    assert parsed.type == "gauge"


def test_numbers_beyond_a_doubles_precision_are_written_in_full():
    assert render([Family("m", "h", MetricType.COUNTER, [Sample({}, 2**63 - 1)])]).endswith(b"m 9223372036854775807\n")

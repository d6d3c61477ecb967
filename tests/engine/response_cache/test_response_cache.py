"""The response cache of a real server: what is answered from it, what never is, and how that is counted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.server import ServerProcess
from tritonclient import grpc

from .models import (
    CACHED,
    ask,
    call,
    counts,
    gauge,
    metrics,
    outputs,
    statistics,
    write_counting,
    write_ensemble,
)

GAUGES = (
    "util",
    "num_entries",
    "num_hits",
    "num_misses",
    "num_lookups",
    "num_evictions",
    "lookup_duration",
    "insertion_duration",
)
CALLS = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        """Ask the model `called` the same."""
        asked = pb_utils.InferenceRequest(
            model_name="called", inputs=requests[0].inputs(), requested_output_names=["OUT", "N"]
        )
        answer = asked.exec()
        return [pb_utils.InferenceResponse(answer.output_tensors())]
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    models = folder / "models"
    for name in ("counted", "outputs", "classes", "errors", "shapes", "grpc", "lost", "called", "step", "speaks"):
        write_counting(models, name)
    write_counting(models, "off", "")
    write_counting(models, "tagged", CACHED + 'metric_tags { key: "k" value: "v" }')
    write_counting(models, "calls", "", code=CALLS)
    write_ensemble(models, "ensemble", "step")
    write_ensemble(models, "of_off", "off")
    with ServerProcess(models, "--cache-config=local,size=1048576", work=folder) as running:
        yield running


def test_the_second_equal_request_is_answered_without_the_model(server):
    first, second = (ask(server, "counted", 1, 2, id=name) for name in ("a", "b"))
    assert (call(first), call(second)) == (1, 1)
    assert (first.json()["id"], second.json()["id"]) == ("a", "b")
    assert {**first.json(), "id": ""} == {**second.json(), "id": ""}  # its parameters are kept, too
    assert counts(server, "counted") == {
        "inferences": 1,
        "executions": 1,
        "success": 2,
        "fail": 0,
        "queue": 2,
        "compute_input": 1,
        "compute_infer": 1,
        "compute_output": 1,
        "cache_hit": 1,
        "cache_miss": 1,
    }
    took = statistics(server, "counted")["inference_stats"]
    assert 0 < took["cache_hit"]["ns"] + took["cache_miss"]["ns"] < took["success"]["ns"]


def test_a_response_holds_the_outputs_that_are_asked_for_and_no_others(server):
    def names(*wanted: str) -> dict[str, list]:
        return outputs(ask(server, "outputs", 3, outputs=[{"name": name} for name in wanted]))

    assert names("N") == {"N": [1]}
    assert names("N") == {"N": [1]}
    assert names() == {"OUT": [3.0], "N": [2]}  # what was kept was only a part of that
    assert names("OUT") == {"OUT": [3.0]}
    assert names("N", "OUT") == {"OUT": [3.0], "N": [2]}
    assert counts(server, "outputs")["executions"] == 2


def test_a_cached_output_is_returned_as_classes(server):
    wanted = [{"name": "OUT", "parameters": {"classification": 1}}]
    assert outputs(ask(server, "off", 1, 4, outputs=wanted)) == {"OUT": ["4.000000:1"]}
    for _ in range(2):
        assert outputs(ask(server, "classes", 1, 4, outputs=wanted)) == {"OUT": ["4.000000:1"]}


@pytest.mark.parametrize(("value", "text"), [(-1, "minus one"), (-2, "minus two")])
def test_an_error_is_never_kept(server, value, text):
    before = counts(server, "errors")
    for _ in range(2):
        reply = ask(server, "errors", value)
        assert reply.status == 500
        assert text in reply.error
    after = counts(server, "errors")
    assert after["executions"] - before["executions"] == 2
    assert (after["cache_hit"], after["cache_miss"] - before["cache_miss"]) == (0, 2)


def test_responses_cached_over_http_are_returned_over_grpc_and_streams(server):
    kept = call(ask(server, "grpc", 1, 2))
    tensor = grpc.InferInput("IN", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2]], np.float32))
    heard = []
    with grpc.InferenceServerClient(server.grpc_url) as client:
        answer = client.infer("grpc", [tensor], request_id="7")
        client.start_stream(lambda result, error: heard.append((result, error)))
        for _ in range(3):
            client.async_stream_infer("grpc", [tensor])
        client.stop_stream()
    for result, error in [(answer, None), *heard]:
        assert error is None
        assert (result.as_numpy("N").tolist(), result.as_numpy("OUT").tolist()) == ([[kept]], [[1.0, 2.0]])
    assert (answer.get_response().id, len(heard), counts(server, "grpc")["cache_hit"]) == ("7", 3, 4)


def test_a_call_from_a_model_is_answered_from_the_cache(server):
    assert [call(ask(server, "calls", 8)) for _ in range(3)] == [1, 1, 1]
    assert counts(server, "called")["cache_hit"] == 2


def test_an_ensemble_keeps_its_responses_and_so_do_its_steps(server):
    first, second = ask(server, "ensemble", 6), ask(server, "ensemble", 6)
    assert call(first) == call(second) == call(ask(server, "step", 6))
    # As from the reference: the sequence was the first request's.
    assert ("parameters" in first.json(), "parameters" in second.json()) == (True, False)
    assert (counts(server, "ensemble")["cache_hit"], counts(server, "step")["cache_hit"]) == (1, 1)
    assert call(ask(server, "of_off", 6)) == call(ask(server, "of_off", 6))


def test_a_hit_needs_no_guest(server):
    kept = call(ask(server, "lost", 1))
    assert ask(server, "lost", -3).status != 200
    assert call(ask(server, "lost", 1)) == kept  # whether its guest is back by then or not
    assert counts(server, "lost")["executions"] == 1


def test_metrics_count_hits_and_misses_of_each_model_and_of_the_cache(server):
    for _ in range(3):
        ask(server, "tagged", 1)
    labels = '{_k="v",model="tagged",version="1"}'
    assert metrics(server, f"nv_cache_num_hits_per_model{labels}") == [f"nv_cache_num_hits_per_model{labels} 2"]
    assert metrics(server, f"nv_cache_num_misses_per_model{labels}") == [f"nv_cache_num_misses_per_model{labels} 1"]
    assert metrics(server, "HELP nv_cache_miss_duration_per_model") == [
        "# HELP nv_cache_miss_duration_per_model Total cache miss (insert+lookup) duration per model, in microseconds"
    ]
    whole = {name: gauge(server, f"nv_cache_{name}") for name in GAUGES}
    assert whole["num_lookups"] == whole["num_hits"] + whole["num_misses"]
    assert whole["num_entries"] >= 1
    assert 0 < whole["util"] < 1
    assert whole["num_evictions"] == 0


def test_a_trace_of_a_hit_has_no_times_of_a_computation(tmp_path):
    write_counting(tmp_path / "models", "m")
    file = tmp_path / "trace.json"
    traced = ("--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", f"--trace-config=triton,file={file}")
    with ServerProcess(tmp_path / "models", "--cache-config=local,size=4096", *traced, work=tmp_path) as server:
        for _ in range(2):
            ask(server, "m", 1)
    noted: dict[int, set[str]] = {}
    for event in json.loads(file.read_text()):
        noted.setdefault(event["id"], set()).update(stamp["name"] for stamp in event.get("timestamps", ()))
    computed, found = noted.values()
    assert {name for name in computed - found if name.startswith("COMPUTE")} == computed - found
    assert {"REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END"} <= found < computed


def test_a_full_cache_drops_the_least_recently_used_and_logs_responses_that_never_fit(tmp_path):
    write_counting(tmp_path / "models", "m")
    with ServerProcess(tmp_path / "models", "--cache-config=local,size=4096", work=tmp_path) as server:
        kept = call(ask(server, "m", 0))
        for value in range(1, 20):
            ask(server, "m", value)
            assert call(ask(server, "m", 0)) == kept  # used all the time
        assert call(ask(server, "m", 1)) == 21
        assert gauge(server, "nv_cache_num_evictions") > 10
        large = [call(ask(server, "m", *[1.5] * 2000)) for _ in range(3)]
        assert large == [22, 23, 24]
        assert call(ask(server, "m", 0)) == kept  # and nothing had to go for it
    (line,) = [line for line in server.log.splitlines() if "Failed to insert key" in line]
    assert "Requested byte_size: 8836 is greater than total cache size: 4096" in line
    assert "model 'm'" in line


DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def test_a_model_that_cannot_have_a_cache_does_not_load(tmp_path):
    models = tmp_path / "models"
    write_counting(models, "decoupled", CACHED + DECOUPLED)
    write_counting(models, "sequences", CACHED + "sequence_batching { }")
    write_counting(models, "step", DECOUPLED)
    write_ensemble(models, "of_decoupled", "step")
    with ServerProcess(models, "--exit-on-error=false", work=tmp_path, wait="loaded") as server:
        entries = {entry["name"]: entry for entry in server.post("/v2/repository/index").json()}
    assert entries["step"]["state"] == "READY"
    for name, what in {
        "decoupled": "'decoupled' transaction policy",
        "sequences": "sequence batching scheduler",
        "of_decoupled": "'decoupled' transaction policy",
    }.items():
        assert entries[name]["reason"].endswith(
            f"Response Cache does not currently support model {name} with {what}. Please disable the response cache."
        ), entries[name]

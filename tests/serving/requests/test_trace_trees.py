"""Traces of requests that lead to others, in both modes, by real servers. Trees and names were taken from the reference."""

from __future__ import annotations

import json

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from support.client_inputs import input_of
from support.collector import Collector, tree
from support.model_files import python_config, write_files
from support.server import ServerProcess
from tritonclient.grpc import service_pb2, service_pb2_grpc

CONFIG = python_config("I FP32 2", "O FP32 2", "instance_group [{ kind: KIND_CPU }]\n")
LEAF = """
def execute(self, requests):
    for request in requests:
        print("CONTEXT leaf", request.trace().get_context(), flush=True)
        if request.inputs()[0].as_numpy()[0] < 0:
            raise ValueError("less than nothing")
    return [pb_utils.InferenceResponse([pb_utils.Tensor("O", r.inputs()[0].as_numpy())]) for r in requests]
"""
CALLS = """
def respond(self, request):
    def to_leaf(**given):
        tensor = pb_utils.Tensor("I", request.inputs()[0].as_numpy())
        return pb_utils.InferenceRequest("", 0, [tensor], ["O"], "leaf", **given)

    print("CONTEXT calls", request.trace().get_context(), flush=True)
    answer = to_leaf(trace=request.trace()).exec()
    to_leaf().exec()
    if answer.has_error():
        return pb_utils.InferenceResponse(error=answer.error())
    return pb_utils.InferenceResponse([answer.output_tensors()[0]])
"""
SPANS = """
import json
import os

import triton_python_backend_utils as pb_utils
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

class TritonPythonModel:
    def initialize(self, args):
        url = json.loads(args["model_config"])["parameters"]["url"]["string_value"]
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self.tracer = provider.get_tracer("model")

    def execute(self, requests):
        answers = []
        for request in requests:
            context = TraceContextTextMapPropagator().extract(json.loads(request.trace().get_context()))
            with self.tracer.start_as_current_span("thinking", context):
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("O", request.inputs()[0].as_numpy())]))
        return answers
"""
ENSEMBLE = """
platform: "ensemble"
input [{ name: "I" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "O" data_type: TYPE_FP32 dims: [2] }]
ensemble_scheduling { step [
 { model_name: "leaf" model_version: -1 input_map { key: "I" value: "I" } output_map { key: "O" value: "between" } },
 { model_name: "calls" model_version: -1 input_map { key: "I" value: "between" } output_map { key: "O" value: "O" } }
] }
"""
ON = ("--trace-config=rate=1", "--trace-config=level=TIMESTAMPS")
REQUEST = ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
THEIRS = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{THEIRS}-b7ad6b7169203331-01", "tracestate": "vendor=said"}


@pytest.fixture(scope="module")
def repository(work):
    write_files(work, "leaf", CONFIG, LEAF)
    write_files(work, "calls", CONFIG, CALLS)
    write_files(work, "chain", ENSEMBLE)
    return work


def ask(server, model, first=1.0, headers=None, request_id="mine"):
    tensor = {"name": "I", "datatype": "FP32", "shape": [2], "data": [first, 2]}
    return server.post(f"/v2/models/{model}/infer", {"id": request_id, "inputs": [tensor]}, headers)


@pytest.fixture(scope="module")
def collector():
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def exporting(repository, collector, tmp_path_factory):
    """A server that exports each span almost at once."""
    options = (
        "--trace-config=mode=opentelemetry",
        f"--trace-config=opentelemetry,url={collector.url}",
        "--trace-config=opentelemetry,resource=service.version=7",
        "--trace-config=opentelemetry,bsp_schedule_delay=10",
        *ON,
    )
    with ServerProcess(repository, *options, work=tmp_path_factory.mktemp("exporting")) as server:
        yield server


@pytest.fixture
def spans_of(exporting, collector):
    """Asks a model and returns the spans of that, and the server's log meanwhile."""

    def spans_of(model, count, **asked):
        collector.spans.clear()
        begin = len(exporting.log)
        reply = ask(exporting, model, **asked)
        return reply, list(collector.wait_for(count)), exporting.log[begin:]

    return spans_of


def test_a_request_has_spans_of_its_connection_its_model_and_the_computation(spans_of):
    _, spans, _ = spans_of("leaf", 3)
    assert tree(spans) == {"InferRequest": {"leaf": {"compute": {}}}}
    root, model, compute = sorted(spans, key=lambda span: span.begin)
    assert root.event_names == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert (model.event_names, compute.event_names) == (REQUEST, COMPUTE)
    assert {span.kind for span in spans} == {2}
    number = model.attributes.pop("triton.trace_id")
    assert number > 0
    assert model.attributes == {
        "triton.model_name": "leaf",
        "triton.model_version": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "mine",
    }
    assert (root.attributes, compute.attributes) == ({}, {})
    for span in spans:
        times = [span.begin, *sorted(when for _, when in span.events), span.end]
        assert times == sorted(times), span
        assert span.resource["service.name"] == "triton-inference-server"
        assert span.resource["service.version"] == "7"
        assert span.scope == "triton-server"


def test_calls_that_hand_the_trace_on_and_steps_have_their_spans_in_the_callers(spans_of):
    _, spans, _ = spans_of("chain", 8)
    assert tree(spans) == {
        "InferRequest": {"chain": {"leaf": {"compute": {}}, "calls": {"compute": {}, "leaf": {"compute": {}}}}}
    }
    assert len({span.trace for span in spans}) == 1
    numbered = {span.attributes["triton.trace_id"]: span for span in spans if span.attributes}
    parents = {
        numbered[number].name: numbered.get(span.attributes["triton.trace_parent_id"])
        for number, span in sorted(numbered.items())
    }
    assert parents["chain"] is None
    assert parents["calls"].name == "chain"
    assert parents["leaf"].name == "calls"
    ensemble = next(span for span in spans if span.name == "chain")
    assert ensemble.event_names == REQUEST


def test_the_context_of_a_client_is_passed_to_the_models(spans_of):
    _, spans, log = spans_of("calls", 5, headers=HEADERS)
    assert {(span.trace, span.state) for span in spans} == {(THEIRS, "vendor=said")}
    root = next(span for span in spans if span.name == "InferRequest")
    assert root.parent == "b7ad6b7169203331"
    ids = {span.name: span.id for span in spans}
    for name in ("calls", "leaf"):
        told = rf"CONTEXT {name} '{{\"traceparent\":\"00-{THEIRS}-{ids[name]}-01\",\"tracestate\":\"vendor=said\"}}'"
        assert told.replace("'", "") in log.replace("'", "")
    assert "CONTEXT leaf None" in log  # the call that did not hand the trace on


def test_failed_spans_are_marked(spans_of):
    reply, spans, _ = spans_of("calls", 5, first=-1.0)
    assert reply.status == 500
    errors = {span.name: span.error for span in spans}
    assert "less than nothing" in errors["leaf"]
    assert "less than nothing" in errors["calls"]
    assert errors["InferRequest"] == errors["calls"]
    assert errors["compute"] == ""


def test_a_refused_request_leaves_a_span_that_ends(exporting, collector):
    collector.spans.clear()
    tensor = {"name": "WRONG", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    assert exporting.post("/v2/models/leaf/infer", {"inputs": [tensor]}).status == 400
    assert tree(collector.wait_for(2)) == {"InferRequest": {"leaf": {}}}


def tensors(model="leaf"):
    tensor = input_of(tritonclient.grpc, "I", np.array([1, 2], np.float32))
    return {"model_name": model, "inputs": [tensor]}


def test_grpc_calls_take_the_context_from_their_metadata(exporting, collector):
    collector.spans.clear()
    with tritonclient.grpc.InferenceServerClient(exporting.grpc_url) as client:
        client.infer(**tensors(), headers=HEADERS)
        unary = list(collector.wait_for(3))
        collector.spans.clear()
        answers = []
        client.start_stream(lambda result, error: answers.append((result, error)), headers=HEADERS)
        client.async_stream_infer(**tensors())
        streamed = list(collector.wait_for(3))
        client.stop_stream()
    for spans in (unary, streamed):
        assert {span.trace for span in spans} == {THEIRS}
        root = next(span for span in spans if span.name == "InferRequest")
        assert root.event_names[:2] == ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
        assert root.event_names[-1] == "GRPC_SEND_END"


def test_generate_takes_the_context_as_well(exporting, collector):
    collector.spans.clear()
    assert exporting.post("/v2/models/leaf/generate", {"I": [1, 2]}, HEADERS).status == 200
    assert {span.trace for span in collector.wait_for(3)} == {THEIRS}


def test_settings_show_how_spans_are_exported(exporting, collector):
    expected = {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "1",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": collector.url,
        "resource": "service.version=7",
        "bsp_max_queue_size": "2048",
        "bsp_schedule_delay": "10",
        "bsp_max_export_batch_size": "512",
    }
    assert exporting.get("/v2/trace/setting").json() == expected
    with grpc.insecure_channel(exporting.grpc_url) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).TraceSetting(service_pb2.TraceSettingRequest())
    told = {name: list(value.value) for name, value in answer.settings.items()}
    assert told == {name: value if isinstance(value, list) else [value] for name, value in expected.items()}
    refused = exporting.post("/v2/trace/setting", {"trace_rate": "0"})
    assert refused.json()["error"] == "Attempting to set invalid trace setting :sample rate must be non-zero"


def test_a_context_has_a_request_traced_whatever_rate_and_count(repository, tmp_path):
    with Collector() as collector:
        options = (
            "--trace-config=mode=opentelemetry",
            f"--trace-config=opentelemetry,url={collector.url}",
            "--trace-config=rate=0",
            "--trace-config=count=0",
            "--trace-config=level=TIMESTAMPS",
        )
        with ServerProcess(repository, *options, work=tmp_path) as server:
            ask(server, "leaf")
            ask(server, "leaf", headers={"traceparent": "nonsense"})
            ask(server, "leaf", headers={"traceparent": f"00-{THEIRS}-b7ad6b7169203331-00"})
        # What waited was exported when the server ended.
        assert {span.trace for span in collector.spans} == {THEIRS}
        assert len(collector.spans) == 3


def test_a_models_own_spans_are_inside_those_of_its_request(tmp_path):
    with Collector() as collector:
        parameter = f'parameters {{ key: "url" value {{ string_value: "{collector.url}" }} }}'
        write_files(tmp_path / "models", "spans", CONFIG + parameter, SPANS)
        options = ("--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,url={collector.url}", *ON)
        with ServerProcess(tmp_path / "models", *options, work=tmp_path / "work") as server:
            assert ask(server, "spans").status == 200
    model = next(span for span in collector.spans if span.name == "spans")
    own = next(span for span in collector.spans if span.name == "thinking")
    assert (own.trace, own.parent, own.scope) == (model.trace, model.id, "model")


def test_without_a_collector_requests_are_answered_and_the_server_ends(repository, tmp_path):
    with Collector() as gone:
        url = gone.url
    options = ("--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,url={url}", *ON)
    with ServerProcess(repository, *options, work=tmp_path) as server:
        assert ask(server, "leaf").status == 200
    assert "Connection refused" in server.log


def test_files_name_the_parent_of_each_trace(repository, tmp_path):
    path = tmp_path / "traces.json"
    with ServerProcess(repository, f"--trace-config=triton,file={path}", *ON, work=tmp_path) as server:
        ask(server, "chain")
        ask(server, "calls", first=-1.0)
        assert "CONTEXT leaf None" in server.log
        assert "traceparent" not in server.log
    events = json.loads(path.read_text())
    named = {event["id"]: event for event in events if "model_name" in event}
    chain, leaf, calls, called, failing, failed = (named[number] for number in sorted(named))
    assert chain == {"id": chain["id"], "model_name": "chain", "model_version": 1, "request_id": "mine"}
    assert leaf == {**chain, "id": leaf["id"], "model_name": "leaf", "parent_id": chain["id"]}
    assert calls == {**chain, "id": calls["id"], "model_name": "calls", "parent_id": chain["id"]}
    assert called == {"id": called["id"], "model_name": "leaf", "model_version": 1, "parent_id": calls["id"]}
    assert failed == {"id": failed["id"], "model_name": "leaf", "model_version": 1, "parent_id": failing["id"]}
    notes = {
        number: [e["timestamps"][0]["name"] for e in events if e["id"] == number and "timestamps" in e]
        for number in named
    }
    assert set(notes[chain["id"]]) & set(COMPUTE) == set()
    assert "INFER_RESPONSE_COMPLETE" in notes[chain["id"]]
    assert notes[called["id"]] == ["REQUEST_START", "QUEUE_START", *COMPUTE, "REQUEST_END"]

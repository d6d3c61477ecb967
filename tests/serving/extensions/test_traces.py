"""The content of trace files."""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
import pytest
from cli.parsing import parse_options
from support.client_inputs import input_of
from support.waiting import until

from naiad.config.server.flag import UsageError
from naiad.config.server.trace_options import OpenTelemetryConfig, TraceConfig
from naiad.core.errors import OptionError
from naiad.frontends.extensions import Extensions
from naiad.frontends.tracing.tracer import Tracer
from naiad.protocol.inference import InferRequest, InferResponse


class Ignoring:
    def send(self, response, final):
        pass


def ask(tracer, count=1, model="m", request_id=""):
    for _ in range(count):
        request = InferRequest(model, -1, [], request_id)
        sink = tracer.wrap_sink(request, Ignoring(), "HTTP")
        if request.trace is not None:
            request.trace.on_computed(10, 20, 30, 40, 50)
        sink.send(InferResponse(model, 3), True)


def tracer_to(path, **options):
    return Tracer(TraceConfig(**{"levels": ("TIMESTAMPS",), "rate": 1, "file": str(path), **options}))


def names(events):
    return [event["timestamps"][0]["name"] for event in events if "timestamps" in event]


def test_a_trace_has_the_times_of_each_step_of_a_request(tmp_path):
    tracer = tracer_to(tmp_path / "t")
    ask(tracer, request_id="mine")
    tracer.close()
    events = json.loads((tmp_path / "t").read_text())
    number = events[0]["id"]
    assert events[0] == {"id": number, "model_name": "m", "model_version": 3, "request_id": "mine"}
    assert {event["id"] for event in events} == {number}
    assert names(events) == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "INFER_RESPONSE_COMPLETE",
        "REQUEST_END",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert {"id": number, "timestamps": [{"name": "COMPUTE_INPUT_END", "ns": 30}]} in events


@pytest.mark.parametrize(
    ("rate", "count", "asked", "traced"), [(1, -1, 5, 5), (3, -1, 10, 3), (2, 2, 10, 2), (1, 0, 3, 0)]
)
def test_rate_and_count_choose_the_traced_requests(tmp_path, rate, count, asked, traced):
    tracer = tracer_to(tmp_path / "t", rate=rate, count=count)
    ask(tracer, asked)
    tracer.close()
    text = (tmp_path / "t").read_text() if traced else "[]"
    assert len({event["id"] for event in json.loads(text)}) == traced
    assert (tmp_path / "t").exists() is bool(traced)
    assert tracer.settings()["trace_count"] == (str(count - traced) if count > 0 else str(count))


def test_with_a_frequency_traces_go_into_numbered_files(tmp_path):
    tracer = tracer_to(tmp_path / "t", log_frequency=2)
    ask(tracer, 5)
    tracer.close()
    counts = {path.name: len({e["id"] for e in json.loads(path.read_text())}) for path in sorted(tmp_path.iterdir())}
    assert counts == {"t.0": 2, "t.1": 2, "t.2": 1}


def test_many_traces_are_written_while_the_server_runs(tmp_path):
    tracer = tracer_to(tmp_path / "t")
    ask(tracer, 200)

    def written() -> int:
        text = (tmp_path / "t").read_text() if (tmp_path / "t").exists() else ""
        return len({event["id"] for event in json.loads(text + "]")}) if text.endswith("}") else 0

    until(lambda: written() == 192, "three batches of traces to be written")
    tracer.close()
    assert len({event["id"] for event in json.loads((tmp_path / "t").read_text())}) == 200


def test_settings_of_one_model_leave_others_alone(tmp_path):
    tracer = tracer_to(tmp_path / "t", levels=())
    assert not tracer.is_on
    tracer.apply("one", {"levels": ("TIMESTAMPS",)})
    assert tracer.is_on
    ask(tracer, 2, "one")
    ask(tracer, 2, "two")
    tracer.apply("one", {"levels": None})
    assert not tracer.is_on
    ask(tracer, 2, "one")
    tracer.close()
    events = json.loads((tmp_path / "t").read_text())
    assert [event["model_name"] for event in events if "model_name" in event] == ["one", "one"]


def test_a_file_that_cannot_be_written_is_said_in_the_log(tmp_path, caplog):
    tracer = tracer_to(tmp_path / "no" / "t")
    ask(tracer)
    with caplog.at_level(logging.ERROR, "naiad.trace"):
        tracer.close()
    assert f"failed creating trace file: {tmp_path}/no/t: No such file or directory" in caplog.text


def test_requests_of_clients_are_traced_with_their_tensors(serve, connect, api, protocol, tmp_path):
    tracer = tracer_to(tmp_path / "t", levels=("TIMESTAMPS", "TENSORS"))
    client = connect(serve(Extensions(tracer=tracer)))
    tensor = input_of(api, "INPUT0", np.array([1, 2.5], np.float32))
    client.infer("later", [tensor])
    client.is_server_live()  # it is answered after the trace of the first request has ended
    tracer.close()
    events = json.loads((tmp_path / "t").read_text())
    activities = {event["activity"]: event["tensor"] for event in events if "activity" in event}
    assert activities == {
        "TENSOR_QUEUE_INPUT": {"name": "INPUT0", "data": "1,2.5", "shape": "2", "dtype": "FP32"},
        "TENSOR_BACKEND_OUTPUT": {"name": "OUTPUT0", "data": "1,2.5", "shape": "2", "dtype": "FP32"},
    }
    start = {"http": "HTTP_RECV_START", "grpc": "GRPC_WAITREAD_START"}[protocol]
    assert names(events)[0] == start
    assert names(events)[-1].endswith("_SEND_END")


def options_of(*flags):
    return parse_options(["--model-repository=/m", *flags], environ={})


def test_flags_choose_the_traced_requests():
    options = options_of(
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=level=tensors",
        "--trace-config=rate=7",
        "--trace-config=count=9",
        "--trace-config=triton,file=/t",
        "--trace-config=triton,log-frequency=4",
    )
    assert options.trace.config == TraceConfig(
        levels=("TIMESTAMPS", "TENSORS"), rate=7, count=9, log_frequency=4, file="/t"
    )
    assert options_of().trace.config == TraceConfig()


def test_old_flags_still_count_where_no_new_one_overrides_them():
    options = options_of("--trace-file=/t", "--trace-level=TIMESTAMPS", "--trace-rate=5", "--trace-config=rate=6")
    assert options.trace.config == TraceConfig(levels=("TIMESTAMPS",), rate=6, file="/t")
    assert "Overriding deprecated '--trace-rate' in favor of provided rate value in --trace-config!" in options.warnings


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("level=LOUD", "invalid value for trace level option: LOUD"),
        ("rate=fast", "rate must be an integer of at least 0. Got fast"),
        ("count=-2", "count must be an integer of at least -1. Got -2"),
        ("mode=x", "invalid value for trace mode option: x"),
        ("colour=red", "unknown trace setting 'colour'; the settings are mode, level, rate"),
        ("level", "--trace-config option format is '<mode>,<setting>=<value>'. Got level"),
    ],
)
def test_wrong_settings_are_refused(setting, text):
    with pytest.raises(UsageError) as caught:
        options_of(f"--trace-config={setting}")
    assert text in caught.value.message


def test_flags_say_how_spans_are_exported():
    options = options_of(
        "--trace-config=mode=opentelemetry",
        "--trace-config=opentelemetry,url=http://here/v1/traces",
        "--trace-config=opentelemetry,resource=service.name=mine",
        "--trace-config=opentelemetry,resource=a=b=c",
        "--trace-config=opentelemetry,bsp_schedule_delay=20",
    )
    assert options.trace.config.open_telemetry == OpenTelemetryConfig(
        url=("http://here/v1/traces",), resource=("service.name=mine", "a=b=c"), bsp_schedule_delay=20
    )
    assert options_of("--trace-config=mode=triton").trace.config.open_telemetry is None


def test_variables_of_opentelemetry_stand_for_settings_that_are_not_given():
    environ = {"OTEL_BSP_MAX_QUEUE_SIZE": "4000", "OTEL_BSP_SCHEDULE_DELAY": "30"}
    flags = ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,bsp_schedule_delay=20"]
    options = parse_options(["--model-repository=/m", *flags], environ=environ)
    assert options.trace.config.open_telemetry == OpenTelemetryConfig(bsp_max_queue_size=4000, bsp_schedule_delay=20)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("foo=1", "unknown trace setting 'opentelemetry,foo'; the settings are mode,"),
        ("url=", "opentelemetry,url is empty"),
        ("resource=name", "opentelemetry,resource must be <key>=<value>. Got name"),
        ("resource==x", "opentelemetry,resource must be <key>=<value>. Got =x"),
        ("bsp_schedule_delay=soon", "opentelemetry,bsp_schedule_delay must be an integer of at least 1. Got soon"),
        ("bsp_max_queue_size=8", "bsp_max_export_batch_size=512 is more than bsp_max_queue_size=8"),
    ],
)
def test_wrong_settings_of_the_exporter_are_refused(setting, text):
    with pytest.raises(UsageError) as caught:
        options_of("--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,{setting}")
    assert text in caught.value.message


def test_without_the_packages_the_error_names_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(OptionError, match=r"mode=opentelemetry\): .*pip install 'opentelemetry-"):
        Tracer(TraceConfig(levels=("TIMESTAMPS",), open_telemetry=OpenTelemetryConfig()))


def test_tensors_are_traced_into_files_alone(caplog):
    options = TraceConfig(levels=("TENSORS",), open_telemetry=OpenTelemetryConfig(url=("http://127.0.0.1:9/",)))
    tracer = Tracer(options)
    assert not tracer.is_on
    tracer.close()
    assert "Tensor level tracing is not supported by the mode: opentelemetry" in caplog.text

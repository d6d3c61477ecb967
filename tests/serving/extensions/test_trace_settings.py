"""Settings of traces over both protocols. Answers and texts were compared with the reference's."""

from __future__ import annotations

import pytest
from tritonclient.utils import InferenceServerException

from naiad.config.server.trace_options import TraceConfig
from naiad.frontends.extensions import Extensions
from naiad.frontends.tracing.tracer import Tracer

DEFAULT = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "1",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "/nowhere/trace.json",
    "trace_mode": "triton",
}


@pytest.fixture
def both(serve):
    options = TraceConfig(levels=("TIMESTAMPS",), rate=1, file="/nowhere/trace.json")
    return serve(Extensions(tracer=Tracer(options)))


@pytest.fixture
def client(connect, both):
    return connect(both)


def told(answer):
    if isinstance(answer, dict):
        return answer
    found = {name: list(value.value) for name, value in answer.settings.items()}
    return {name: value if name == "trace_level" else value[0] for name, value in found.items()}


def test_settings_of_all_models_are_returned_changed_and_reset(client):
    assert told(client.get_trace_settings()) == DEFAULT
    changed = {"trace_level": ["TENSORS", "TIMESTAMPS"], "trace_rate": "5", "trace_count": "3", "log_frequency": "2"}
    expected = {**DEFAULT, **changed, "trace_level": ["TIMESTAMPS", "TENSORS"]}
    assert told(client.update_trace_settings(settings=changed)) == expected
    assert told(client.get_trace_settings()) == expected
    assert told(client.update_trace_settings(settings=dict.fromkeys(changed))) == DEFAULT


def test_settings_of_a_model_override_the_global_ones(client):
    client.update_trace_settings("identity", settings={"trace_rate": "7"})
    client.update_trace_settings(settings={"trace_rate": "2", "trace_level": ["OFF"]})
    assert told(client.get_trace_settings("identity")) == {**DEFAULT, "trace_rate": "7", "trace_level": ["OFF"]}
    assert told(client.get_trace_settings("add_sub")) == {**DEFAULT, "trace_rate": "2", "trace_level": ["OFF"]}
    client.update_trace_settings("identity", settings={"trace_rate": None})
    assert told(client.get_trace_settings("identity")) == told(client.get_trace_settings())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"trace_level": ["OFF", "TIMESTAMPS"]}, "Expect only one trace level 'OFF' is specified"),
        ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": "0"}, "Attempting to set invalid trace setting :sample rate must be non-zero"),
        ({"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        *(
            ({name: text}, f"Unable to parse '{name}', value is out of range [ 0, 4294967295 ], got: {text}")
            for name, text in (("log_frequency", "9" * 11), ("trace_rate", "9" * 5000))
        ),
    ],
)
def test_a_refused_change_says_why_and_changes_nothing(client, settings, text):
    with pytest.raises(InferenceServerException) as caught:
        client.update_trace_settings(settings=settings)
    assert caught.value.message() == text
    assert caught.value.status() in {"400", "StatusCode.INVALID_ARGUMENT"}
    assert told(client.get_trace_settings()) == DEFAULT


def test_the_file_cannot_be_changed(client):
    with pytest.raises(InferenceServerException) as caught:
        client.update_trace_settings(settings={"trace_file": "x"})
    assert caught.value.message() == "trace file location can not be updated through network protocol"
    assert caught.value.status() in {"501", "StatusCode.UNIMPLEMENTED"}


def test_an_unknown_model_has_no_settings(client):
    with pytest.raises(InferenceServerException) as caught:
        client.get_trace_settings("nothing")
    assert caught.value.message() == "Request for unknown model : nothing"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"trace_level": ["x"]}, {"trace_level": ["OFF"]}),
        ({"trace_rate": "-1"}, {"trace_rate": "4294967295"}),
        ({"trace_count": "5x"}, {"trace_count": "5"}),
        ({"unknown": "1"}, {}),
        ({}, {}),
    ],
)
def test_odd_values_are_read_as_the_reference_does(client, settings, expected):
    assert told(client.update_trace_settings(settings=settings)) == {**DEFAULT, **expected}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"trace_level": "OFF"}, "attempt to access JSON non-array as array"),
        ({"trace_level": [1]}, "attempt to access JSON non-string as string"),
        ({"trace_rate": 5}, "attempt to access JSON non-string as string"),
    ],
)
def test_values_in_json_have_their_types(both, body, text):
    assert both.http("POST", "/v2/trace/setting", body) == (500, {"error": text})


def test_a_level_without_a_file_is_refused(serve, connect):
    client = connect(serve(Extensions()))
    with pytest.raises(InferenceServerException) as caught:
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    assert caught.value.message() == "Attempting to set invalid trace setting :trace file name is not given"

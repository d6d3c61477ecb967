"""Settings of the log over both protocols, and their effect. Texts were compared with the reference's."""

from __future__ import annotations

import logging

import grpc
import pytest
from tritonclient.grpc import service_pb2 as wire
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from naiad.core.logs import LogSettings, configure
from naiad.frontends.extensions import Extensions

DEFAULT = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture
def extensions():
    return Extensions()


@pytest.fixture
def both(serve, extensions):
    return serve(extensions)


def told(client, answer):
    """The settings of a response by name, for either protocol."""
    if isinstance(answer, dict):
        return answer
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in answer.settings.items()}


def test_settings_are_returned_and_changed(connect, both):
    client = connect(both)
    assert told(client, client.get_log_settings()) == DEFAULT
    changed = client.update_log_settings({"log_verbose_level": 2, "log_info": False, "log_format": "ISO8601"})
    assert told(client, changed) == {**DEFAULT, "log_verbose_level": 2, "log_info": False, "log_format": "ISO8601"}
    assert told(client, client.get_log_settings()) == told(client, changed)


def test_unknown_settings_are_ignored_and_null_changes_nothing(both):
    answer = both.http("POST", "/v2/logging", {"what": 1, "log_info": None})
    assert answer == (200, DEFAULT)
    assert both.http("POST", "/v2/logging", {}) == (200, DEFAULT)


FIXED = "log file location can not be updated through network protocol"
UNKNOWN = "invalid argument for {}log_format, got: x"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("settings", "http", "grpc"),
    [
        ({"log_file": "/tmp/x"}, ("501", FIXED), ("StatusCode.UNIMPLEMENTED", FIXED)),
        ({"log_format": "x"}, ("503", UNKNOWN.format("--")), ("StatusCode.INVALID_ARGUMENT", UNKNOWN.format(""))),
    ],
)
def test_a_refused_change_says_why_and_changes_nothing(connect, both, protocol, extensions, settings, http, grpc):
    with pytest.raises(InferenceServerException) as caught:
        connect(both).update_log_settings({"log_warning": False, **settings})
    assert (caught.value.status(), caught.value.message()) == (http if protocol == "http" else grpc)
    assert extensions.log.settings == LogSettings()


@pytest.mark.parametrize(
    ("name", "value", "over_http", "over_grpc"),
    [
        ("log_info", "x", "attempt to access JSON non-boolean as boolean", "expect boolean for 'log_info'"),
        ("log_verbose_level", "x", NOT_UNSIGNED, "expect int32 for 'log_verbose_level'"),
        ("log_format", True, "attempt to access JSON non-string as string", "expect string for 'log_format'"),
    ],
)
def test_values_have_their_types(both, name, value, over_http, over_grpc):
    assert both.http("POST", "/v2/logging", {name: value}) == (500, {"error": over_http})
    setting = wire.LogSettingsRequest.SettingValue(
        **{"string_param" if isinstance(value, str) else "bool_param": value}
    )
    with grpc.insecure_channel(f"127.0.0.1:{both.grpc_port}") as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).LogSettings(
            wire.LogSettingsRequest(settings={name: setting})
        )
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, over_grpc)


def test_a_level_that_grpc_cannot_represent_is_refused_over_http(connect, both, protocol):
    refusal = {"error": "log_verbose_level is at most 4294967295, got: 4294967296"}
    assert both.http("POST", "/v2/logging", {"log_verbose_level": 2**32}) == (400, refusal)
    highest = {**DEFAULT, "log_verbose_level": 2**32 - 1}
    assert both.http("POST", "/v2/logging", {"log_verbose_level": 2**32 - 1}) == (200, highest)
    client = connect(both)
    assert told(client, client.get_log_settings()) == highest


def test_a_change_shows_from_the_next_line_on(serve, connect, tmp_path):
    path = tmp_path / "log"
    log = logging.getLogger("naiad.test")
    with configure(LogSettings(file=path)) as active:
        client = connect(serve(Extensions(log=active)))
        log.info("one")
        log.debug("hidden")
        client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
        log.debug("two")
        client.update_log_settings({"log_info": False, "log_verbose_level": 0})
        log.info("hidden")
        log.warning("three")
        assert told(client, client.get_log_settings())["log_file"] == str(path)
    # Requests are lines of a verbose log, too.
    lines = [line for line in path.read_text().splitlines() if "test_log_settings.py" in line]
    assert [line.rpartition(" ")[2] for line in lines] == ['"one"', '"two"', '"three"']
    assert lines[0].startswith("I")
    assert lines[1][10] == "T"

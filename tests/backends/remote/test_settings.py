"""The parameters of a remote model: what they mean, and what is rejected with which text."""

from __future__ import annotations

import pytest
from naiad_remote.settings import Settings, Tls, is_header, read


def settings_of(directory: str = "/models/m/1", **values: str) -> Settings:
    return read({"name": "m", "parameters": {name: {"string_value": text} for name, text in values.items()}}, directory)


def test_the_defaults_are_those_of_the_reference_page():
    found = settings_of(url="http://one:8000")

    assert [str(target) for target in found.targets] == ["http://one:8000/v2/models/m"]
    assert found.weights == (1.0,)
    assert (found.timeout, found.connect_timeout, found.idempotent, found.retries) == (60, 2, False, 2)
    assert (found.breaker_failures, found.breaker_seconds, found.max_in_flight, found.max_chain) == (5, 10, 64, 8)
    assert (found.shadows, found.shadow_share, found.shadow_in_flight) == ((), 1.0, 16)
    assert (found.tls, found.headers, found.forward_headers) == (Tls(), (), ())


def test_addresses_may_name_another_model_and_version():
    found = settings_of(
        url="http://one:8000, https://two/eu/v2/models/a%2Fb/versions/3,grpc://[::1]:8001/v2/models/c",
        model="other",
        version="2",
        weights="80, 15,5",
    )

    assert [str(target) for target in found.targets] == [
        "http://one:8000/v2/models/other/versions/2",
        "https://two:443/eu/v2/models/a/b/versions/3",
        "grpc://[::1]:8001/v2/models/c",
    ]
    assert [target.is_grpc for target in found.targets] == [False, False, True]
    assert [target.is_secure for target in found.targets] == [False, True, False]
    assert found.weights == (80, 15, 5)


def test_files_are_relative_to_the_models_directory(tmp_path):
    (tmp_path / "ca.pem").touch()

    assert settings_of(str(tmp_path / "1"), url="https://x", tls_ca="ca.pem").tls.ca == str(tmp_path / "ca.pem")
    with pytest.raises(ValueError, match=r"the parameter 'tls_key' names '.*/no.pem', which does not exist"):
        settings_of(str(tmp_path / "1"), url="https://x", tls_key="no.pem")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "a model of the backend 'remote' needs the parameter 'url', for example \"http://other-server:8000\""),
        (
            {"url": "one:8000"},
            (
                "the parameter 'url' has the invalid address 'one:8000'; write one as http://host:8000 or "
                "grpc://host:8001/v2/models/other/versions/2"
            ),
        ),
        (
            {"url": "http://one:99999"},
            (
                "the parameter 'url' has the invalid address 'http://one:99999': Port out of range 0-65535; write one as "
                "http://host:8000 or grpc://host:8001/v2/models/other/versions/2"
            ),
        ),
        (
            {"url": "http://a", "servers": "http://head:8000/replicas"},
            "the parameters 'servers' and 'url' exclude each other: a list has the addresses of its servers",
        ),
        (
            {"servers": "http://head:8000/replicas", "weights": "1"},
            "the parameters 'servers' and 'weights' exclude each other: a list has the addresses of its servers",
        ),
        (
            {"servers": "head:8000"},
            (
                "the parameter 'servers' is 'head:8000'; it must be the URL of a list of servers, such as "
                "http://head:8000/replicas"
            ),
        ),
        (
            {"servers": "http://head:8000/replicas", "servers_port": "openai"},
            "the parameter 'servers_port' is 'openai'; it must be http, grpc or grpcs",
        ),
        (
            {"url": "grpc://one/eu"},
            "the parameter 'url' has the address 'grpc://one/eu', but gRPC has no paths such as '/eu'",
        ),
        (
            {"url": "http://a,http://b", "weights": "1"},
            (
                "the parameter 'weights' is '1'; it must have 2 numbers of at least 0, one for each address of 'url', and "
                "one above 0"
            ),
        ),
        (
            {"url": "http://a", "weights": "0"},
            (
                "the parameter 'weights' is '0'; it must have 1 numbers of at least 0, one for each address of 'url', and "
                "one above 0"
            ),
        ),
        (
            {"url": "http://a", "timeout_second": "1"},
            "the backend 'remote' has no parameter 'timeout_second'; did you mean 'timeout_seconds'?",
        ),
        (
            {"url": "http://a", "timeout_seconds": "soon"},
            "the parameter 'timeout_seconds' is 'soon'; it must be a number of at least 0",
        ),
        (
            {"url": "http://a", "connect_timeout_seconds": "0"},
            "the parameter 'connect_timeout_seconds' is '0'; it must be a number above 0",
        ),
        (
            {"url": "http://a", "shadow_percent": "120"},
            "the parameter 'shadow_percent' is '120'; it must be a number from 0 to 100",
        ),
        (
            {"url": "http://a", "retries": "-1"},
            "the parameter 'retries' is '-1'; it must be a whole number of at least 0",
        ),
        ({"url": "http://a", "idempotent": "maybe"}, "the parameter 'idempotent' is 'maybe'; it must be true or false"),
        (
            {"url": "http://a", "headers": "a: b"},
            'the parameter \'headers\' must be a JSON object of names and texts, such as {"authorization": "..."}',
        ),
        (
            {"url": "http://a", "headers": '{"content-length": "3"}'},
            "the parameter 'headers' has the header 'content-length', which cannot be sent",
        ),
    ],
)
def test_invalid_parameters_are_rejected_with_what_is_allowed(values, text):
    with pytest.raises(ValueError) as error:
        settings_of(**values)
    assert str(error.value) == text


def test_parameters_of_the_server_are_not_the_backends_business():
    settings_of(url="http://a", EXECUTION_ENV_PATH="env.tar.gz", memory_limit="1G", idle_seconds="5")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-user", "Ada Lovelace", True),
        ("x-user", "a\r\nx-admin: true", False),
        ("x-user", "é", False),
        ("x user", "a", False),
        ("Transfer-Encoding", "chunked", False),
    ],
)
def test_headers_cannot_break_a_request_apart(name, value, expected):
    assert is_header(name, value) is expected

"""Restricted parts of the protocols and headers that reach models. Texts were compared with the reference's."""

from __future__ import annotations

import contextlib
import re
import socket

import grpc
import numpy as np
import pytest
from cli.parsing import parse_options
from support.client_inputs import input_of
from tritonclient.utils import InferenceServerException

from naiad.config.server.access import Api
from naiad.config.server.flag import UsageError
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.kserve_grpc.methods import RESTRICTED_METHODS
from naiad.frontends.kserve_http.restricted import guarded_endpoints
from naiad.frontends.kserve_http.routes import Endpoint

LOCKED = {"restrictions": {Api.HEALTH: ("Infer-Key", "secret"), Api.INFERENCE: ("k", "v")}}


def tensor_in(api):
    return input_of(api, "INPUT0", np.array([1], np.float32))


@pytest.fixture
def locked(serve):
    access = {"access": Access(**LOCKED)}
    return serve(Extensions(), for_http=access, for_grpc=access)


def header(protocol, name, value):
    return {name: value} if protocol == "http" else {f"triton-grpc-protocol-{name.lower()}": value}


def test_a_restricted_part_needs_its_header_and_value(connect, locked, api, protocol):
    client = connect(locked)
    for headers in ({}, header(protocol, "k", "w"), {"Infer-Key" if protocol == "http" else "infer-key": "secret"}):
        with pytest.raises(InferenceServerException) as caught:
            client.infer("identity", [tensor_in(api)], headers=headers)
        if protocol == "http":
            assert caught.value.message() == "This API is restricted, expecting header 'k'"
            assert caught.value.status() == "403"
        else:
            text = "This protocol is restricted, expecting header 'triton-grpc-protocol-k'"
            assert (caught.value.status(), caught.value.message()) == ("StatusCode.UNAVAILABLE", text)
    assert client.infer("identity", [tensor_in(api)], headers=header(protocol, "k", "v")).as_numpy("OUTPUT0")[0] == 1


def test_other_parts_stay_open(connect, locked, protocol):
    client = connect(locked)
    assert client.get_server_metadata()
    assert client.is_server_live(headers=header(protocol, "Infer-Key", "secret"))
    if protocol == "http":
        assert not client.is_server_live()
    else:
        with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-infer-key'"):
            client.is_server_live()


def test_streams_and_the_health_service_are_restricted_too(locked):
    with grpc.insecure_channel(f"127.0.0.1:{locked.grpc_port}") as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for call in (lambda: list(stream(iter([b""]))), lambda: check(b"")):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert check(b"", metadata=[("triton-grpc-protocol-infer-key", "secret")])


def test_a_repeated_header_is_denied_whatever_its_values_are(locked):
    """The last one counted: a proxy may have checked the first."""
    for values in (("x", "v"), ("v", "x"), ("v", "v")):
        with contextlib.closing(socket.create_connection(("127.0.0.1", locked.http_port))) as connection:
            lines = "".join(f"{name}: {value}\r\n" for name, value in zip("kK", values, strict=True))
            head = (
                "POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0"
            )
            connection.sendall(f"{head}\r\n{lines}\r\n".encode())
            received = connection.makefile("rb").read()
        assert received.startswith(b"HTTP/1.1 403 ")
        assert received.endswith(b'{"error":"This API is restricted, and header \'k\' is repeated; send it once"}')
        name = "triton-grpc-protocol-k"
        with grpc.insecure_channel(f"127.0.0.1:{locked.grpc_port}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", metadata=[(name, value) for value in values])
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == f"This protocol is restricted, and header '{name}' is repeated; send it once"


def test_generate_is_inference_and_a_wrong_verb_tells_nothing(locked):
    text = {"error": "This API is restricted, expecting header 'k'"}
    assert locked.http("POST", "/v2/models/identity/generate", {}) == (403, text)
    assert locked.http("GET", "/v2/models/identity/infer") == (403, text)


def test_every_endpoint_and_method_belongs_to_a_part():
    everything = dict.fromkeys(Api, ("h", "v"))
    assert set(guarded_endpoints(everything)) == set(Endpoint)
    services = pb.DESCRIPTOR.services_by_name.values()
    restricted = [name for names in RESTRICTED_METHODS.values() for name in names]
    assert sorted(method.name for service in services for method in service.methods) == sorted(restricted)


@pytest.fixture
def forwarding(serve):
    access = {"access": Access(forward=re.compile("^x-|prio|triton_", re.IGNORECASE))}
    return serve(Extensions(), for_http=access, for_grpc=access)


def test_headers_that_match_reach_the_model_as_parameters(connect, forwarding, api, protocol):
    client = connect(forwarding)
    name = "X-One" if protocol == "http" else "x-one"
    for value in ("1", "2"):  # the second request is recognised, and has another header
        client.infer("identity", [tensor_in(api)], headers={name: value, "y-x-": "no"})
        assert forwarding.engine.requests[-1].parameters == {name: value}
    client.infer("identity", [tensor_in(api)])
    assert forwarding.engine.requests[-1].parameters == {}
    client.infer("identity", [tensor_in(api)], headers={name: "header"}, parameters={name: "own", "other": 1})
    assert forwarding.engine.requests[-1].parameters == {name: "header", "other": 1}


@pytest.mark.parametrize("name", ["priority", "triton_x"])
def test_headers_with_reserved_names_are_refused(connect, forwarding, api, name):
    with pytest.raises(InferenceServerException) as caught:
        connect(forwarding).infer("identity", [tensor_in(api)], headers={name: "1"})
    assert caught.value.message() == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


def test_headers_reach_models_over_streams(forwarding):
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    with grpc.insecure_channel(f"127.0.0.1:{forwarding.grpc_port}") as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        list(stream(iter([request.SerializeToString()]), metadata=[("x-one", "1")]))
    assert forwarding.engine.requests[-1].parameters == {"x-one": "1"}


def options_of(*flags):
    return parse_options(["--model-repository=/m", *flags], environ={})


def test_flags_name_parts_and_headers():
    options = options_of(
        "--http-restricted-api=health,metadata:key=a=b",
        "--http-restricted-api=shared-memory:other=c",
        "--grpc-restricted-protocol=logging:key=v",
        "--http-header-forward-pattern=^X-",
    )
    assert options.http.restrictions == {
        Api.HEALTH: ("key", "a=b"),
        Api.METADATA: ("key", "a=b"),
        Api.SHARED_MEMORY: ("other", "c"),
    }
    assert options.grpc.restrictions == {Api.LOGGING: ("key", "v")}
    assert options.http.forward_pattern.search("x-one")
    assert options.grpc.forward_pattern is None


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("PREFIX_.*", ("PREFIX_a", "prefix_b"), ("other",)),
        ("(?-i)PREFIX_.*", ("PREFIX_a",), ("prefix_a", "other")),
        ("(?-i)^PREFIX_|x$", ("PREFIX_a", "ax"), ("prefix_a", "aX")),
        ("(?s-i)PREFIX.", ("PREFIX_a",), ("prefix_a",)),
        ("(?-i:PREFIX)_a", ("PREFIX_A",), ("prefix_a",)),
    ],
)
def test_case_of_headers_counts_only_where_the_pattern_says_so(pattern, matching, others):
    options = options_of("--http-header-forward-pattern", pattern, "--grpc-header-forward-pattern", pattern)
    assert options.grpc.forward_pattern == options.http.forward_pattern
    assert [name for name in (*matching, *others) if options.http.forward_pattern.search(name)] == [*matching]


TWICE = "'health' can not be specified in multiple config groups"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--http-restricted-api=health"], "option format is '<api>,<api>:<header>=<value>'. Got health"),
        (["--http-restricted-api=health:=v"], "option format is '<api>,<api>:<header>=<value>'. Got health:=v"),
        (["--grpc-restricted-protocol=health:k="], "option format is '<api>,<api>:<header>=<value>'. Got health:k="),
        (["--http-restricted-api=helth:k=v"], "unknown restricted api 'helth'; there are health, metadata"),
        (["--http-restricted-api=health,health:k=v"], f"restricted api {TWICE}"),
        ([f"--http-restricted-api=health:k={value}" for value in "vw"], f"restricted api {TWICE}"),
        (["--grpc-restricted-protocol=helth:k=v"], "unknown restricted protocol 'helth'; there are health"),
        ([f"--grpc-restricted-protocol=health:k={value}" for value in "vw"], f"restricted protocol {TWICE}"),
        (["--grpc-header-forward-pattern=("], "invalid regular expression '('"),
    ],
)
def test_wrong_flags_are_refused(flags, text):
    with pytest.raises(UsageError) as caught:
        options_of(*flags)
    assert text in caught.value.message

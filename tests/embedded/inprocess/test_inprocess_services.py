"""Services of a server in this process, asked by real clients."""

from __future__ import annotations

import contextlib
import http.client
import socket
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import naiad
from naiad import KServeGrpc, KServeHttp, Metrics

NUMBERS = np.array([1.0, 2.0], np.float32)


def ask(client_module, url, **more):
    with client_module.InferenceServerClient(url) as client:
        tensor = client_module.InferInput("IN", [2], "FP32")
        tensor.set_data_from_numpy(NUMBERS)
        return client.infer("identity", [tensor], **more).as_numpy("OUT").tolist()


def test_http_is_served_until_the_block_ends(shared):
    with KServeHttp(shared, KServeHttp.Options(address="127.0.0.1", port=0)) as service:
        assert ask(httpclient, f"127.0.0.1:{service.port}") == [1.0, 2.0]

    with pytest.raises(OSError, match=r"refused"):
        ask(httpclient, f"127.0.0.1:{service.port}")


def test_pages_of_other_sites_are_refused_unless_they_are_allowed(shared):
    def status(port, **headers):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("POST", "/v2/repository/index", headers=headers)
            return connection.getresponse().status

    with KServeHttp(shared, KServeHttp.Options(address="127.0.0.1", port=0)) as service:
        assert status(service.port) == 200
        assert status(service.port, Origin="http://evil.example") == 403
        assert status(service.port, Host="evil.example") == 403
    options = KServeHttp.Options(
        address="127.0.0.1", port=0, allowed_hosts="a.example", allowed_origins="http://app.example"
    )
    with KServeHttp(shared, options) as service:
        assert status(service.port, Origin="http://app.example", Host="a.example") == 200
    options = KServeHttp.Options(address="127.0.0.1", port=0, allowed_hosts="http://a.example")
    with pytest.raises(naiad.InvalidArgumentError, match=r"'http://a\.example' is not a name such as"):
        KServeHttp(shared, options).start()


def test_grpc_is_served(shared):
    options = KServeGrpc.Options(address="127.0.0.1", port=0, infer_compression_level="LOW")
    assert options.infer_compression_level == KServeGrpc.Grpc_compression_level.LOW

    with KServeGrpc(shared, options) as service:
        assert ask(grpcclient, f"127.0.0.1:{service.port}") == [1.0, 2.0]


def test_metrics_are_served(shared):
    service = Metrics(shared, Metrics.Options(address="127.0.0.1", port=0))
    service.start()
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics", timeout=20) as page:
        assert b"nv_inference_count" in page.read()
    with pytest.raises(naiad.AlreadyExistsError, match=r"already running"):
        service.start()
    service.stop()
    with pytest.raises(naiad.UnavailableError, match=r"not running"):
        service.stop()


def test_headers_are_forwarded_whatever_their_case(shared):
    options = KServeHttp.Options(address="127.0.0.1", port=0, header_forward_pattern="^TRITON_")
    refusal = "Header 'triton_x' is reserved for Triton usage and cannot be forwarded"  # so the pattern has matched
    with KServeHttp(shared, options) as service, pytest.raises(InferenceServerException, match=refusal):
        ask(httpclient, f"127.0.0.1:{service.port}", headers={"triton_x": "1"})


def test_a_port_that_is_taken_is_an_error_of_this_api(shared):
    with KServeHttp(shared, KServeHttp.Options(address="127.0.0.1", port=0)) as service:
        second = KServeHttp(shared, KServeHttp.Options(address="127.0.0.1", port=service.port))
        with pytest.raises(naiad.InvalidArgumentError, match=r"cannot serve HTTP at 127.0.0.1:.*in use"):
            second.start()


def test_options_are_of_the_services_own_class(shared):
    with pytest.raises(naiad.InvalidArgumentError) as raised:
        KServeHttp(shared, KServeGrpc.Options())

    assert str(raised.value) == ("Incorrect type for options. options argument must be of type KServeHttp.Options")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"port": 65536}, "port must be in 0 to 65535, not 65536"),
        ({"port": -1}, "port must be in 0 to 65535, not -1"),
        ({"port": "http"}, "port must be of type int, not 'http'"),
        ({"port": "65536"}, "port must be in 0 to 65535, not '65536'"),
        ({"port": 80.5}, "port must be of type int, not 80.5"),
        ({"port": None}, "port must be of type int, not None"),
        ({"thread_count": 0}, "thread_count must be in 1 to 2147483647, not 0"),
        ({"reuse_port": "perhaps"}, "reuse_port must be of type bool, not 'perhaps'"),
        ({"reuse_port": 2}, "reuse_port must be of type bool, not 2"),
        ({"address": 1}, "address must be of type str, not 1"),
    ],
)
def test_options_are_checked_when_they_are_made(fields, text):
    with pytest.raises(ValueError, match=text):
        KServeHttp.Options(**fields)


def test_a_service_needs_a_started_server(tmp_path):
    with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
        KServeHttp(naiad.Server(model_repository=str(tmp_path)))


def test_numbers_and_switches_may_be_texts():
    options = KServeHttp.Options(port=" 8001 ", thread_count=4.0, reuse_port="True")

    assert (options.port, options.thread_count, options.reuse_port) == (8001, 4, True)
    assert KServeHttp.Options(reuse_port="off").reuse_port is False


@pytest.mark.parametrize(
    "name",
    [
        "keepalive_time_ms",
        "keepalive_timeout_ms",
        "http2_max_pings_without_data",
        "http2_min_recv_ping_interval_without_data_ms",
        "http2_max_ping_strikes",
        "max_connection_age_ms",
        "max_connection_age_grace_ms",
        "infer_thread_count",
        "infer_allocation_pool_size",
        "max_response_pool_size",
        "port",
    ],
)
@pytest.mark.parametrize("value", [-1, 1 << 31])
def test_numbers_of_grpc_have_ranges(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be in 0 to \d+, not {value}$"):
        KServeGrpc.Options(**{name: value})


def test_levels_of_compression_have_the_packages_names():
    levels = KServeGrpc.Grpc_compression_level

    assert {level.name: level.value for level in levels} == {"NONE": 0, "LOW": 1, "MED": 2, "HIGH": 3, "COUNT": 4}
    for given in (levels.HIGH, 3, "3", "HIGH"):
        assert KServeGrpc.Options(infer_compression_level=given).infer_compression_level == 3
    with pytest.raises(ValueError, match="infer_compression_level must be in 0 to 3, not "):
        KServeGrpc.Options(infer_compression_level=levels.COUNT)


def test_responses_are_compressed_at_the_level_that_was_asked_for(shared):
    options = KServeGrpc.Options(
        address="127.0.0.1", port=0, infer_compression_level=KServeGrpc.Grpc_compression_level.MED
    )
    with (
        KServeGrpc(shared, options) as service,
        grpcclient.InferenceServerClient(f"127.0.0.1:{service.port}") as client,
    ):
        tensor = grpcclient.InferInput("IN", [3], "FP32")
        tensor.set_data_from_numpy(np.ones(3, np.float32))
        assert client.infer("identity", [tensor]).as_numpy("OUT").tolist() == [1, 1, 1]


def test_services_that_run_when_their_server_stops_are_stopped_with_it(tmp_path, store):
    server = naiad.Server(model_repository=str(tmp_path), flags=[f"--env-store={store}"]).start()
    services = [
        KServeHttp(server, KServeHttp.Options(address="127.0.0.1", port=0)),
        KServeGrpc(server, KServeGrpc.Options(address="127.0.0.1", port=0)),
        Metrics(server, Metrics.Options(address="127.0.0.1", port=0)),
    ]
    for service in services:
        service.start()

    server.stop()

    for service in services:
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", service.port)) != 0
        service.stop()
        with pytest.raises(naiad.UnavailableError, match=r"^server is not running\.$"):
            service.stop()
        with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
            service.start()


def test_a_block_of_a_service_may_end_after_its_server(tmp_path, store):
    server = naiad.Server(model_repository=str(tmp_path), flags=[f"--env-store={store}"]).start()
    with KServeHttp(server, KServeHttp.Options(address="127.0.0.1", port=0)):
        server.stop()


def test_a_service_serves_a_server_that_was_started_again(tmp_path, store):
    server = naiad.Server(model_repository=str(tmp_path), flags=[f"--env-store={store}"]).start()
    service = KServeHttp(server, KServeHttp.Options(address="127.0.0.1", port=0))
    service.start()
    server.stop()
    server.start()

    service.start()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)) as connection:
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().status == 200
    service.stop()
    server.stop()

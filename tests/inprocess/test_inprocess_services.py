"""Services of a server in this process, asked by real clients."""

from __future__ import annotations

import urllib.request

import naiad
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from naiad import KServeGrpc, KServeHttp, Metrics
from naiad.inprocess.services import CompressionLevel
from tritonclient.utils import InferenceServerException

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


def test_grpc_is_served(shared):
    options = KServeGrpc.Options(address="127.0.0.1", port=0, infer_compression_level="LOW")
    assert options.infer_compression_level is CompressionLevel.LOW

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
        ({"port": "8000"}, "port must be of type int, not '8000'"),
        ({"thread_count": 0}, "thread_count must be at least 1, not 0"),
        ({"address": 1}, "address must be of type str, not 1"),
    ],
)
def test_options_are_checked_when_they_are_made(fields, text):
    with pytest.raises(ValueError, match=text):
        KServeHttp.Options(**fields)


def test_a_service_needs_a_started_server(tmp_path):
    with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
        KServeHttp(naiad.Server(model_repository=str(tmp_path)))

"""The endpoint over a real socket."""

from __future__ import annotations

import socket

import pytest
from fakes.engine import FakeEngine
from prometheus_client.parser import text_string_to_metric_families

from naiad.core.errors import Code, NaiadError, OptionError
from naiad.frontends.metrics.families import Family, MetricType, Sample
from naiad.frontends.metrics.server import MetricsFrontend
from naiad.protocol.metadata import ModelStatistics


def test_metrics_are_computed_when_asked_for(served):
    response, body = served.ask()
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/plain; charset=utf-8"
    assert b'nv_inference_count{model="add_sub",version="1"} 21\n' in body

    served.engine.all_statistics = [ModelStatistics(name="other", version="2", inference_count=7)]

    _, body = served.ask()
    assert b'nv_inference_count{model="other",version="2"} 7\n' in body
    assert b"add_sub" not in body


def test_the_whole_page_is_text_that_prometheus_reads(served):
    _, body = served.ask()
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"nv_inference_count", "nv_inference_request_failure", "nv_cpu_utilization"} <= names


def test_a_collector_that_fails_unexpectedly_does_not_leave_its_scrape_without_response(served, caplog):
    served.collectors.append(lambda: [Family("more", "h", MetricType.GAUGE, [Sample({}, 1 / 0)])])
    response, body = served.ask()
    assert (response.status, b"division" in body) == (500, False)
    assert "division by zero" in caplog.text


def test_families_of_others_share_the_page(served):
    served.collectors.append(lambda: [Family("more", "h", MetricType.GAUGE, [Sample({"model": "m"}, 4)])])
    assert b'more{model="m"} 4\n' in served.ask()[1]


@pytest.mark.parametrize("path", ["/metrics?format=text", "/metrics/", "/metrics/?x"])
def test_a_query_and_a_last_slash_are_ignored(served, path):
    assert served.ask(path)[0].status == 200


@pytest.mark.parametrize("path", ["/", "/metrics//", "/metrics2", "/v2/metrics", "//metrics"])
def test_other_paths_are_not_found(served, path):
    response, body = served.ask(path)
    assert (response.status, body) == (404, b"Not Found")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_verbs_are_not_allowed(served, method):
    response, body = served.ask(method=method)
    assert response.status == 405
    assert response.getheader("Allow") == "GET, HEAD"
    assert body == b"Method Not Allowed"


def test_head_has_the_status_and_the_headers_of_get(served):
    response, body = served.ask(method="HEAD")
    assert response.status == 200
    assert int(response.getheader("Content-Length")) > 0
    assert body == b""


def test_a_connection_serves_many_scrapes(served):
    connection = served.connect()
    for method, status in (("GET", 200), ("HEAD", 200), ("GET", 200), ("POST", 405), ("GET", 200)):
        connection.request(method, "/metrics")
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def raw(served, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        received = b""
        for piece in pieces:
            connection.sendall(piece)
        while data := connection.recv(65536):
            received += data
        return received


def test_a_client_that_asks_for_it_is_disconnected_after_the_answer(served):
    assert b"Connection: close\r\n" in raw(
        served, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )


def test_http_1_0_is_answered_and_closed(served):
    assert raw(served, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_request_in_pieces_and_two_at_once_are_answered(served):
    received = raw(
        served,
        b"GET /met",
        b"rics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nope HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"HTTP/1.1 404 Not Found\r\n" in received


def test_bytes_that_are_not_http_are_refused(served):
    assert raw(served, b"\x16\x03\x01 tls here\r\n\r\n").startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_an_upgrade_is_answered_as_a_plain_request(served):
    received = raw(
        served, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    )
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")


def test_endless_headers_are_refused(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_an_error_of_the_engine_is_the_error_of_the_scrape(served, monkeypatch):
    def exiting(name="", version=-1):
        raise NaiadError("Server exiting", code=Code.UNAVAILABLE)

    monkeypatch.setattr(served.engine, "statistics", exiting)
    response, body = served.ask()
    assert (response.status, body) == (503, b"Server exiting")


def test_stopping_closes_idle_connections_and_the_port(loop):
    frontend = MetricsFrontend(FakeEngine(), address="127.0.0.1", port=0)
    port = loop.run(frontend.start())
    with socket.create_connection(("127.0.0.1", port), timeout=60) as idle:
        loop.until(lambda: frontend.connection_count)
        loop.run(frontend.stop())
        assert idle.recv(1) == b""
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    loop.run(frontend.stop())


def test_a_port_in_use_is_named_with_the_reason_and_the_option(served):
    with pytest.raises(OptionError) as caught:
        served.loop.run(MetricsFrontend(FakeEngine(), address="127.0.0.1", port=served.port).start())
    assert f"cannot serve metrics at 127.0.0.1:{served.port}: " in caught.value.message
    assert caught.value.message.endswith("set another address or port with --metrics-address or --metrics-port")
    assert "ddress already in use" in caught.value.message

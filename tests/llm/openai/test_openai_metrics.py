"""`--openai-metrics`: the metrics on the API's port, its own or that of HTTP, with the API's keys."""

from __future__ import annotations

import http.client
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.server import ServerProcess, free_ports

from .conftest import KEY, MODELS


def get(port, path, key=""):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type"), response.read().decode()


@pytest.mark.parametrize("is_shared", [False, True])
def test_metrics_are_served_with_the_keys_of_the_api(tmp_path, is_shared):
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    server = ServerProcess(MODELS, "--openai-metrics", f"--openai-api-keys-file={keys}", work=tmp_path)
    port = server.http_port if is_shared else free_ports(1)[0]
    server.command.append(f"--openai-port={port}")
    with server:
        status, kind, text = get(port, "/metrics", KEY)
        assert (status, kind) == (200, "text/plain; charset=utf-8")
        names = {family.name for family in text_string_to_metric_families(text)}
        assert {"nv_inference_request_success", "nv_cpu_utilization"} <= names
        assert get(port, "/metrics")[0] == 401
        assert get(port, "/v1/models", KEY)[0] == 200


def test_metrics_are_not_there_without_the_flag(server):
    status, _, text = get(server.openai_port, "/metrics")
    assert status == 404
    assert "Invalid URL (GET /metrics)" in text

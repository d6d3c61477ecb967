"""The verbose log has the reference's line for each request; other logs have none."""

from __future__ import annotations

import re

import numpy as np
import tritonclient.grpc
from serving.repositories import infer, repository, values
from support.client_inputs import input_of
from support.server import ServerProcess, free_ports


def said(server):
    """The log lines of requests so far, without time and source position.

    In the order of their times: frontend processes write their lines independently of each other.
    """
    lines = re.findall(r'^\w(\d+ \S+) .*\] "(HTTP (?:request|error): [^"]*)"', server.log, re.MULTILINE)
    return [text for _, text in sorted(lines, key=lambda line: line[0])]


def test_each_http_request_is_a_line_of_a_verbose_log_and_of_no_other(tmp_path):
    with ServerProcess(repository(tmp_path / "models", ["identity"]), work=tmp_path) as server:
        assert values(infer(server, "identity", 1)) == [1]
        assert said(server) == []
        server.post("/v2/logging", {"log_verbose_level": 1})
        assert values(infer(server, "identity", 1)) == [1]
        server.get("/v2/health/live?probe=1")
        server.request("HEAD", "/v2/models/identity/ready")
        server.request("OPTIONS", "/v2")
        server.get("/nope%20x")
        server.post("/v2/logging", {"log_verbose_level": 0})
        server.get("/v2/health/live")
        assert said(server) == [
            "HTTP request: 2 /v2/models/identity/infer",
            "HTTP request: 0 /v2/health/live",
            "HTTP request: 1 /v2/models/identity/ready",
            "HTTP request: 8 /v2",
            "HTTP request: 0 /nope%20x",
            "HTTP error: 0 /nope%20x - 404",
            "HTTP request: 2 /v2/logging",
        ]


def test_a_server_may_be_verbose_from_the_start_and_on_the_port_of_openais_api(tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    openai = free_ports(1)[0]
    with ServerProcess(models, "--log-verbose=1", f"--openai-port={openai}", work=tmp_path) as server:
        server.http_port, port = openai, server.http_port
        server.get("/v1/models")
        server.http_port = port
        assert said(server)[0] == "HTTP request: 0 /v2/health/ready"
        assert said(server)[-1] == "HTTP request: 0 /v1/models"


def test_each_grpc_call_is_a_line_of_a_verbose_log_and_of_no_other(tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    tensor = input_of(tritonclient.grpc, "IN", np.ones(1, np.float32))
    with (
        ServerProcess(models, work=tmp_path) as server,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
    ):
        client.is_server_live()
        client.update_log_settings({"log_verbose_level": 1})
        client.is_model_ready("identity")
        client.infer("identity", [tensor])
        client.start_stream(lambda result, error: None)
        client.async_stream_infer("identity", [tensor])
        client.stop_stream()
        client.update_log_settings({"log_verbose_level": 0})
        client.infer("identity", [tensor])
        assert re.findall(r'"(Process for [^"]*)"', server.log) == [
            "Process for ModelReady, rpc_ok=1, 0 step START",
            "Process for ModelInferHandler, rpc_ok=1, 1 step START",
            "Process for ModelStreamInferHandler, rpc_ok=1, context 0, 2 step START",
            "Process for Logging, rpc_ok=1, 3 step START",
        ]

"""What a client may do on each port: every claim of docs/how-to/run-it-safely.md, asked of a running server."""

from __future__ import annotations

import base64
import http.client
import json

import psutil
import pytest
import tritonclient.grpc as grpcclient
from serving.written import write_model
from support.server import ServerProcess, free_ports
from tritonclient.utils import InferenceServerException

ADMIN = {"naiad-admin-key": "secret"}
INFER = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": ["1 + 1"]}]}
FOR_ADMINS = {
    ("GET", "/v2/models/m/config"): None,
    ("POST", "/v2/repository/index"): {},
    ("GET", "/v2/models/m/stats"): None,
    ("GET", "/v2/logging"): None,
    ("POST", "/v2/logging"): {"log_info": False},
    ("GET", "/v2/trace/setting"): None,
    ("POST", "/v2/trace/setting"): {"trace_rate": "5"},
    ("GET", "/v2/systemsharedmemory/status"): None,
}
FOR_ALL = {
    ("GET", "/v2"): None,
    ("GET", "/v2/models/m"): None,
    ("POST", "/v2/models/m/infer"): INFER,
}
HEALTH = ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready")
GRPC_FOR_ADMINS = ("get_model_repository_index", "get_log_settings", "get_trace_settings", "get_inference_statistics")


def status(server, method, path, document, headers=None):
    return server.request(method, path, None if document is None else json.dumps(document).encode(), headers).status


def loaded_code(server, tmp_path, headers=None):
    """The status of a load request that brings a model along, and whether its code ran."""
    mark = tmp_path / "ran"
    code = f"class TritonPythonModel:\n    def initialize(self, args):\n        open({str(mark)!r}, 'w').close()\n"
    parameters = {
        "config": json.dumps({"backend": "python"}),
        "file:1/model.py": base64.b64encode(code.encode()).decode(),
    }
    reply = server.post("/v2/repository/models/brought/load", {"parameters": parameters}, headers)
    return reply.status, mark.exists()


def listened(server):
    """The ports the server listens on, with their addresses."""
    owner = psutil.Process(server.pid)
    return {
        each.laddr.port: each.laddr.ip
        for process in (owner, *owner.children())  # frontend processes are among them
        for each in process.net_connections()
        if each.status == psutil.CONN_LISTEN
    }


def anywhere(server, *more):
    """The flags by which a server of the tests listens where it does by default."""
    server.command += ["--http-address=0.0.0.0", "--grpc-address=0.0.0.0", *more]
    return server


def test_by_default_every_client_may_do_everything_but_change_models(tmp_path):
    write_model(tmp_path / "models", "m")
    with anywhere(ServerProcess(tmp_path / "models", work=tmp_path)) as server:
        for (method, path), document in {**FOR_ALL, **FOR_ADMINS}.items():
            assert status(server, method, path, document) == 200, path
        addresses = listened(server)
        assert addresses[server.http_port] == addresses[server.metrics_port] == "0.0.0.0"
        assert addresses[server.grpc_port] == "::"
        assert loaded_code(server, tmp_path) == (503, False)
        assert status(server, "POST", "/v2/repository/models/m/unload", {}) == 503
        assert status(server, "POST", "/v2/logging", {"log_file": str(tmp_path / "x")}) == 501
        assert status(server, "POST", "/v2/trace/setting", {"trace_file": str(tmp_path / "x")}) == 501
        assert status(server, "POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}) == 400
        region = {"key": "/r", "offset": 0, "byte_size": 4}
        assert status(server, "POST", "/v2/systemsharedmemory/region/r/register", region) == 501
        assert server.get("/ui").status == server.get("/v1/models").status == 404


def test_in_explicit_mode_every_client_may_run_any_code(tmp_path):
    write_model(tmp_path / "models", "m")
    with ServerProcess(tmp_path / "models", "--model-control-mode=explicit", "--load-model=m", work=tmp_path) as server:
        assert loaded_code(server, tmp_path) == (200, True)
        content = base64.b64encode(b"x").decode()
        parameters = {"config": "{}", f"file:{'a/' * 2000}model.py": content}
        reply = server.post("/v2/repository/models/deep/load", {"parameters": parameters})
        assert "it has 2000 folders; at most 64 are allowed" in reply.error


@pytest.fixture(scope="module")
def hardened(work):
    write_model(work / "models", "m")
    options = ("--hardened", "--model-control-mode=explicit", "--load-model=m")
    server = ServerProcess(work / "models", *options, work=work, environ={"NAIAD_ADMIN_KEY": "secret"})
    with anywhere(server) as started:
        yield started


def test_hardened_leaves_inference_to_all_and_the_rest_to_administrators(hardened, tmp_path):
    for (method, path), document in FOR_ALL.items():
        assert status(hardened, method, path, document) == 200, path
    for path in HEALTH:
        assert hardened.get(path).status == 200
    for (method, path), document in FOR_ADMINS.items():
        assert status(hardened, method, path, document) == 403, path
        assert status(hardened, method, path, document, ADMIN) == 200, path
    assert loaded_code(hardened, tmp_path) == (403, False)
    assert loaded_code(hardened, tmp_path, ADMIN) == (200, True)


def test_hardened_does_the_same_for_grpc(hardened):
    client = grpcclient.InferenceServerClient(hardened.grpc_url)
    try:
        assert client.is_server_ready()
        assert client.get_model_metadata("m")
        for name in GRPC_FOR_ADMINS:
            with pytest.raises(InferenceServerException, match="restricted") as caught:
                getattr(client, name)()
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            assert getattr(client, name)(headers={"triton-grpc-protocol-naiad-admin-key": "secret"}) is not None
    finally:
        client.close()


def test_hardened_serves_metrics_to_this_machine_alone(hardened):
    addresses = listened(hardened)
    assert addresses[hardened.metrics_port] == "127.0.0.1"
    assert addresses[hardened.http_port] == "0.0.0.0"
    connection = http.client.HTTPConnection("127.0.0.1", hardened.metrics_port, timeout=60)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()


def test_hardened_is_loud_in_the_log(hardened):
    assert "--hardened sets --metrics-address=127.0.0.1: metrics name models" in hardened.log
    assert "--hardened: requests and keys travel unencrypted" in hardened.log
    assert "secret" not in hardened.log


@pytest.mark.parametrize("is_hardened", [False, True])
def test_api_keys_do_not_guard_v2_unless_hardened(tmp_path, is_hardened):
    write_model(tmp_path / "models", "m")
    [port] = free_ports(1)
    environ = {"NAIAD_OPENAI_API_KEYS": "sk-1", "NAIAD_ADMIN_KEY": "secret"}
    options = (*(["--hardened"] if is_hardened else []), "--model-control-mode=explicit", "--load-model=m")
    server = ServerProcess(tmp_path / "models", *options, work=tmp_path, environ=environ)
    server.command.append(f"--openai-port={server.http_port if is_hardened else port}")
    with server:
        ask = server.get if is_hardened else lambda path, headers=None: get(port, path, headers)
        assert ask("/v1/models").status == 401
        assert ask("/v1/models", {"Authorization": "Bearer sk-1"}).status == 200
        for (method, path), document in FOR_ALL.items():
            assert status(server, method, path, document) == (403 if is_hardened else 200), path
            assert status(server, method, path, document, ADMIN) == 200, path
        for path in HEALTH:
            assert server.get(path).status == 200


def get(port, path, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse()
    finally:
        connection.close()

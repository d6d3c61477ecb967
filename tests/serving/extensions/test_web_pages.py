"""Pages of other sites, open in a browser on a machine that reaches the server, get nothing done there."""

from __future__ import annotations

import http.client
import json
import socket

import pytest
from cli.parsing import refusal
from frontends.http2.peer import Peer
from serving.written import write_model
from support.server import ServerProcess, free_ports

EVIL = "http://evil.example"
FOREIGN = (
    {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
    {"Origin": EVIL},
    {"Sec-Fetch-Site": "cross-site"},
)
STATE_CHANGING = (
    "/v2/repository/models/m/load",
    "/v2/repository/models/m/unload",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/m/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/systemsharedmemory/region/r/unregister",
    "/v2/systemsharedmemory/unregister",
    "/v2/cudasharedmemory/region/r/register",
    "/v2/models/m/infer",
    "/v2/models/m/generate",
    "/ui/control/load/m",
    "/v1/models/m/load",
    "/v1/models/m/unload",
    "/v1/completions",
    "/mcp",
)


def ask(port, method, path, body=b"", **headers):
    with socket.create_connection(("127.0.0.1", port), 30):
        pass
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module", params=["0", "2"], ids=["one-process", "frontends"])
def served(request, tmp_path_factory):
    """A server in explicit mode with everything that it can serve, and its port of OpenAI's API."""
    work = tmp_path_factory.mktemp("pages")
    write_model(work / "models", "m", f"def initialize(self, args): open({str(work / 'loaded')!r}, 'a').close()")
    (port,) = free_ports(1)
    options = (
        "--model-control-mode=explicit",
        "--ui=true",
        "--ui-control=true",
        f"--openai-port={port}",
        "--mcp",
        "--openai-allowed-origins=http://app.example",
        "--allow-client-shm=true",
        f"--processes={max(int(request.param), 1)}",
    )
    with ServerProcess(work / "models", *options, work=work) as server:
        yield server, port


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_site_changes_nothing_on_any_port(served, headers):
    server, openai = served
    code = {"parameters": {"config": "{}", "file:1/model.py": "cmFpc2UgU3lzdGVtRXhpdA=="}}
    for path in STATE_CHANGING:
        for port in (server.http_port, openai, server.metrics_port):
            status, body = ask(port, "POST", path, json.dumps(code).encode(), **headers, naiad_console="1")
            assert status == 403, (path, port, body)
            if port != server.metrics_port:  # whose errors are the status alone
                assert f"cannot accept POST {path} from a page of " in json.loads(body)["error"]
    assert not (server.work / "loaded").exists(), "no code has run"
    assert not [entry for entry in server.post("/v2/repository/index").json() if entry.get("state") == "READY"]
    server.wait_log("): it may change something or run a model; add its origin to --")
    assert server.log.count("cannot accept POST") < 30, "the log is bounded"


def test_a_long_body_of_a_foreign_page_is_refused_before_it_is_read(served):
    server, _ = served
    head = "POST /v2/repository/models/m/load HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n{}\r\n\r\n"
    for framing in (
        "Content-Length: 100000000",
        "Transfer-Encoding: chunked",
        "Content-Length: 9\r\nExpect: 100-continue",
    ):
        with socket.create_connection(("127.0.0.1", server.http_port), 30) as connection:
            connection.sendall(head.format(framing).encode())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 403 ")


def test_the_servers_own_page_and_programs_load_models(served):
    server, openai = served
    own = f"127.0.0.1:{server.http_port}"
    for headers in (
        {},
        {"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://proxied.example", "Sec-Fetch-Site": "same-origin"},
    ):
        assert ask(server.http_port, "POST", "/ui/control/load/m", naiad_console="1", **headers) == (200, "{}")
        assert ask(server.http_port, "POST", "/v2/repository/models/m/unload", **headers)[0] == 200
    allowed = {"Origin": "http://app.example", "Sec-Fetch-Site": "cross-site"}
    assert ask(openai, "POST", "/v1/models/m/load", **allowed)[0] == 200
    assert ask(openai, "POST", "/v1/models/m/unload", **allowed)[0] == 200
    assert ask(server.http_port, "POST", "/v2/repository/models/m/load", **allowed)[0] == 403, "they may use /v1 alone"
    (server.work / "loaded").unlink()
    server.wait_for(lambda: not server.children(), "the guests to end")


def test_a_server_at_loopback_addresses_serves_no_foreign_name_on_any_port(served):
    """A page reads responses of a server that its own name resolves to (DNS rebinding)."""
    server, openai = served
    for port, path in (
        (server.http_port, "/v2/health/live"),
        (server.http_port, "/ui"),
        (openai, "/v1/models"),
        (server.metrics_port, "/metrics"),
    ):
        for host in ("evil.example", f"evil.example:{port}"):
            status, body = ask(port, "GET", path, Host=host)
            assert status == 403, (port, path)
            if port != server.metrics_port:
                assert f"this server is not known as '{host}' (header Host); use its address" in body
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", "[::1]", "a.localhost"):
            assert ask(port, "GET", path, Host=host)[0] == 200


@pytest.mark.parametrize("frontends", ["0", "2"])
def test_flags_name_hosts_and_origins(tmp_path, frontends):
    write_model(tmp_path / "models", "m")
    options = (
        "--model-control-mode=explicit",
        "--http-allowed-hosts=models.example,*.internal.example",
        "--http-allowed-origins=http://app.example:3000/",
        f"--processes={max(int(frontends), 1)}",
    )
    with ServerProcess(tmp_path / "models", *options, work=tmp_path) as server:
        for host, status in (("models.example:80", 200), ("a.internal.example", 200), ("other.example", 403)):
            assert ask(server.http_port, "GET", "/v2", Host=host)[0] == status
            assert ask(server.metrics_port, "GET", "/metrics", Host=host)[0] == status
        path = "/v2/repository/models/m/load"
        assert ask(server.http_port, "POST", path, Origin="http://app.example", Sec_Fetch_Site="cross-site")[0] == 403
        assert (
            ask(server.http_port, "POST", path, Origin="http://app.example:3000", Sec_Fetch_Site="cross-site")[0] == 200
        )


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--http-allowed-hosts=http://a.example", "'http://a.example' is not a name such as models.example.com"),
        ("--http-allowed-hosts=a.example:8000", "'a.example:8000' is not a name such as models.example.com"),
        ("--http-allowed-origins=a.example", "'a.example' is not an origin such as https://app.example.com"),
        (
            "--http-allowed-origins=https://*.a.example",
            "'https://*.a.example' is not an origin such as https://app.example",
        ),
        ("--openai-allowed-origins=http://a.example/path", "'http://a.example/path' is not an origin such as"),
    ],
)
def test_a_value_that_would_never_match_is_an_error_of_the_command_line(flag, problem):
    assert problem in refusal(flag).message


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/grpc-web", ""]
)
def test_grpcs_port_refuses_what_a_page_may_send(served, content_type):
    """`application/grpc` is not among the content types that a page may send without asking the server first."""
    server, _ = served
    (server.work / "loaded").unlink(missing_ok=True)
    peer = Peer(server.grpc_port)
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/inference.GRPCInferenceService/RepositoryModelLoad"),
        (":authority", "localhost"),
        ("origin", EVIL),
    ]
    peer.request(1, fields=[*fields, *([("content-type", content_type)] if content_type else [])], ends=True)
    received, _, _ = peer.response(1)
    assert received[":status"] == "415"
    peer.close()
    with socket.create_connection(("127.0.0.1", server.grpc_port), 30) as connection:
        connection.sendall(
            b"POST /inference.GRPCInferenceService/RepositoryModelLoad HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert b"200" not in connection.recv(1 << 12)
    assert not (server.work / "loaded").exists()

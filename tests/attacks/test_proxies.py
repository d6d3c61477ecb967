"""Behind real proxies: two servers that are restarted in turn lose no request, and events are not collected."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from serving.repositories import repository
from serving.stopping.clients import Clients, send_over_grpc, send_over_http
from serving.written import write_model
from support.proxies import haproxy, nginx
from support.server import HOST, ServerProcess, free_ports
from support.waiting import until

_CLIENTS = 4
"""Of each protocol, each with a connection that it keeps."""
_DRAIN_SECONDS = 5
"""Longer than nginx avoids a server that failed, and than HAProxy takes to see that one is not ready, or is again."""

_NGINX = """
upstream http_servers {{
    least_conn;
    server {host}:{http[0]} max_fails=2 fail_timeout=2s;
    server {host}:{http[1]} max_fails=2 fail_timeout=2s;
    keepalive 64;
}}
upstream grpc_servers {{
    least_conn;
    server {host}:{grpc[0]} max_fails=2 fail_timeout=2s;
    server {host}:{grpc[1]} max_fails=2 fail_timeout=2s;
    keepalive 64;
}}
server {{
    listen {host}:{front[0]};
    client_max_body_size 0;
    keepalive_requests 1000000;
    location / {{
        proxy_pass http://http_servers;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $http_host;
        proxy_buffering off;
        proxy_next_upstream error timeout http_503;
    }}
}}
server {{
    listen {host}:{front[1]} http2;
    client_max_body_size 0;
    keepalive_requests 1000000;
    location / {{
        grpc_pass grpc://grpc_servers;
        grpc_next_upstream error timeout;
    }}
}}
"""

_HAPROXY = """
defaults
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout check 10s
frontend http_front
    mode http
    bind {host}:{front[0]}
    default_backend http_servers
backend http_servers
    mode http
    balance leastconn
    option http-no-delay
    option httpchk GET /v2/health/ready
    default-server check inter 500ms fall 2 rise 1
    server first {host}:{http[0]}
    server second {host}:{http[1]}
frontend grpc_front
    mode http
    bind {host}:{front[1]} proto h2
    default_backend grpc_servers
backend grpc_servers
    mode http
    balance leastconn
    server first {host}:{grpc[0]} proto h2 track http_servers/first
    server second {host}:{grpc[1]} proto h2 track http_servers/second
"""


class Backends:
    """Two servers at ports that they keep."""

    def __init__(self, models: Path, work: Path, *options: str) -> None:
        ports = free_ports(4)
        self.http, self.grpc = ports[:2], ports[2:]
        self._models, self._work, self._options = models, work, options
        self._count = itertools.count()
        self._servers: list[contextlib.ExitStack] = []

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for number in range(2):
                self._servers.append(stack.enter_context(contextlib.ExitStack()))
                self._start(number)
            yield

    def restart(self, number: int) -> None:
        """Stop a server with SIGTERM, start another at its ports, and wait until that is ready."""
        self._servers[number].close()
        self._start(number)

    def _start(self, number: int) -> None:
        server = ServerProcess(
            self._models,
            f"--http-port={self.http[number]}",
            f"--grpc-port={self.grpc[number]}",
            f"--drain-seconds={_DRAIN_SECONDS}",
            *self._options,
            work=self._work / f"server-{next(self._count)}",
            wait="",
        )
        self._servers[number].enter_context(server)
        server.wait_log("Started Metrics Service")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("proxy", "configuration", "processes", "restarts", "requests"),
    [
        pytest.param(nginx, _NGINX, 1, 1, 500, id="once behind nginx"),
        *(
            pytest.param(*each, processes, 4, 10_000, id=f"{name}-{processes}", marks=pytest.mark.endurance)
            for name, each in {"nginx": (nginx, _NGINX), "haproxy": (haproxy, _HAPROXY)}.items()
            for processes in (1, 2)
        ),
    ],
)
def test_servers_that_restart_behind_a_proxy_lose_no_request(
    tmp_path: Path,
    proxy: Callable[[str, int, Path], AbstractContextManager[None]],
    configuration: str,
    processes: int,
    restarts: int,
    requests: int,
) -> None:
    """Up to 3 % of the gRPC calls failed behind nginx: a server that stopped kept its port, to reject what came."""
    models = repository(tmp_path / "models", ["identity"])
    # nginx has no probes: it would send requests to a server whose models load.
    waits = ["--listen-while-loading=false"] if proxy is nginx else []
    backends = Backends(models, tmp_path, f"--processes={processes}", *waits)
    front = free_ports(2)
    text = configuration.format(host=HOST, http=backends.http, grpc=backends.grpc, front=front)
    with contextlib.ExitStack() as stack:
        stack.enter_context(backends.started())
        stack.enter_context(proxy(text, front[1], tmp_path / "proxy"))
        loads = [Clients(send_over_http, front[0], _CLIENTS), Clients(send_over_grpc, front[1], _CLIENTS)]
        for load in loads:
            stack.callback(load.stop)
        for number in range(restarts):
            backends.restart(number % 2)
        for load in loads:
            until(partial(load.has_answered, requests), "requests to be answered", timeout=240)
            load.stop()
    assert [dict(Counter(load.failures)) for load in loads] == [{}, {}]


_WAITS_BETWEEN_TWO_RESPONSES = """
def execute(self, requests):
    sender = requests[0].get_response_sender()
    path = pb_utils.get_input_tensor_by_name(requests[0], "CODE").as_numpy()[0].decode()
    for text in (b"first", b"second"):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))]))
        while not os.path.exists(path):
            time.sleep(0.02)
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_NGINX_DEFAULTS = "server {{ listen {host}:{front}; location / {{ proxy_pass http://{host}:{http}; }} }}"
_HAPROXY_STREAMS = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option http-no-delay
listen front
    bind {host}:{front}
    server only {host}:{http}
"""


@pytest.mark.parametrize(
    ("proxy", "configuration"),
    [
        pytest.param(nginx, _NGINX_DEFAULTS, id="nginx"),
        pytest.param(haproxy, _HAPROXY_STREAMS, id="haproxy"),
    ],
)
def test_a_proxy_passes_an_event_on_while_the_model_makes_the_next_one(
    tmp_path: Path, proxy: Callable[[str, int, Path], AbstractContextManager[None]], configuration: str
) -> None:
    """nginx kept the first event until the stream had ended: it collects responses unless they forbid that."""
    models, gate = tmp_path / "models", tmp_path / "gate"
    decoupled = "model_transaction_policy { decoupled: true }\n"
    write_model(models, "waits", _WAITS_BETWEEN_TWO_RESPONSES, config=decoupled)
    (front,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ServerProcess(models, work=tmp_path))
        text = configuration.format(host=HOST, front=front, http=server.http_port)
        stack.enter_context(proxy(text, front, tmp_path / "proxy"))
        client = stack.enter_context(contextlib.closing(http.client.HTTPConnection(HOST, front, timeout=240)))
        stack.callback(gate.touch)  # the model ends, whatever the client has seen
        client.request("POST", "/v2/models/waits/generate_stream", json.dumps({"CODE": str(gate)}))
        response = client.getresponse()
        assert b'"OUT":"first"' in response.readline()
        gate.touch()
        assert b'"OUT":"second"' in response.read()

"""Whether the ports of the server are free, before models are loaded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from naiad.config.server.options import ServerOptions
from naiad.core.errors import OptionError
from naiad.core.listening import listen_failure

_HTTP_ADVICE = "set another address or port with --http-address or --http-port"
_GRPC_ADVICE = "set another address or port with --grpc-address or --grpc-port"
_METRICS_ADVICE = "set another address or port with --metrics-address or --metrics-port"
_OPENAI_ADVICE = "choose another --openai-port or --openai-address"


def require_free_ports(options: ServerOptions) -> None:
    """OptionError for a port at which something else listens, before models are loaded, which may take minutes.

    The listeners open the ports later, and report what has changed by then.
    """
    http, grpc, metrics, openai = options.http, options.grpc, options.metrics, options.openai
    own_openai = 0 if openai.port is None or options.openai_shares_http or http.reuse_port else openai.port
    for service, address, port, advice in (
        ("gRPC", grpc.address, grpc.port if grpc.is_enabled and not grpc.reuse_port else 0, _GRPC_ADVICE),
        ("HTTP", http.address, http.port if http.is_enabled and not http.reuse_port else 0, _HTTP_ADVICE),
        ("HTTP", openai.address, own_openai, _OPENAI_ADVICE),
        ("metrics", metrics.address, metrics.port if metrics.is_enabled else 0, _METRICS_ADVICE),
    ):
        if port:
            with _explained(service, address, port, advice):
                _probe(*_resolve(address, port))


def _resolve(address: str, port: int) -> tuple[socket.AddressFamily, Any]:
    family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, where


def _probe(family: socket.AddressFamily, where: Any) -> None:
    """Bind a socket without listening, so that no client can connect to it; fails if another one listens there."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)


@contextmanager
def _explained(service: str, address: str, port: int, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        cause = listen_failure(problem, port)
        raise OptionError(f"cannot serve {service} at {address}:{port}: {cause}; {advice}") from problem

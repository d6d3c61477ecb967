"""The ports that the processes of the server share: checked, and kept, by the coordinator."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from naiad.config.server.options import ServerOptions
from naiad.core.errors import OptionError
from naiad.core.listening import listen_failure

__all__ = ["require_free_ports", "reserved_ports"]

_HTTP_ADVICE = "set another address or port with --http-address or --http-port"
_GRPC_ADVICE = "set another address or port with --grpc-address or --grpc-port"
_METRICS_ADVICE = "set another address or port with --metrics-address or --metrics-port"
_OPENAI_ADVICE = "choose another --openai-port or --openai-address"


def require_free_ports(options: ServerOptions) -> None:
    """Reject ports at which something else listens, before models are loaded, which may take minutes.

    The listeners open the ports later, and report what has changed by then.

    Raises:
        OptionError: If a port is not available.
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


@contextmanager
def reserved_ports(options: ServerOptions) -> Iterator[ServerOptions]:
    """The options of all processes, whose ports stay the server's while the context is open.

    Raises:
        OptionError: If a port is not available.
    """
    http, grpc, openai = options.http, options.grpc, options.openai
    with ExitStack() as stack:
        if http.is_enabled:
            port = _reserve(
                stack,
                "HTTP",
                http.address,
                http.port,
                _HTTP_ADVICE,
                is_shared=http.reuse_port,
            )
            if options.openai_shares_http:
                openai = replace(openai, port=port)
            http = replace(http, port=port, reuse_port=True)
        if grpc.is_enabled:
            port = _reserve(
                stack,
                "gRPC",
                grpc.address,
                grpc.port,
                _GRPC_ADVICE,
                is_shared=grpc.reuse_port,
            )
            grpc = replace(grpc, port=port, reuse_port=True)
        if openai.port is not None and not options.openai_shares_http:
            port = _reserve(
                stack,
                "HTTP",
                openai.address,
                openai.port,
                _OPENAI_ADVICE,
                is_shared=http.reuse_port,
            )
            openai = replace(openai, port=port)
        yield replace(options, http=http, grpc=grpc, openai=openai)


def _reserve(stack: ExitStack, service: str, address: str, port: int, advice: str, *, is_shared: bool) -> int:
    """Bind a socket that never listens, so that the port stays this server's; the port."""
    with _explained(service, address, port, advice):
        family, where = _resolve(address, port)
        if not is_shared:
            # Sockets that share a port would also share it with another server: nothing else may listen there.
            _probe(family, where)
        kept = stack.enter_context(contextlib.closing(socket.socket(family, socket.SOCK_STREAM)))
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(where)
    return int(kept.getsockname()[1])


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

"""The HTTP frontend: KServe v2 and its extensions on a port."""

from __future__ import annotations

from collections.abc import Callable

from naiad.config.server.access import TlsFiles
from naiad.engine.door import EngineDoor
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.connection import Limits
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import Exchange
from naiad.frontends.kserve_http.endpoints import Endpoints


class HttpFrontend(HttpListener):
    """Serves KServe v2 over HTTP/1.1."""

    def __init__(
        self,
        engine: EngineDoor,
        *,
        address: str,
        port: int,
        reuse_port: bool = False,
        max_json: int = 64 << 20,
        limits: Limits | None = None,
        extensions: Extensions | None = None,
        access: Access | None = None,
        tls: TlsFiles | None = None,
        further: Callable[[Exchange], bool] | None = None,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            engine: Who answers.
            address: Address to listen on.
            port: Port to listen on, 0 for any.
            reuse_port: Whether several servers may share the port.
            max_json: Longest JSON of a request in bytes (--http-max-input-size).
            limits: Bounds on requests.
            extensions: What is shared with other frontends.
            access: What is restricted, and which headers are forwarded.
            tls: Certificates; without them there is no TLS.
            further: Answers a request for a path that is none of KServe's; False if that is none of its own either.
        """
        limits = limits or Limits()
        endpoints = Endpoints(
            engine,
            extensions or Extensions(),
            access or Access(),
            max_json=max_json,
            max_body=limits.body_bytes,
            further=further,
        )
        super().__init__(
            endpoints.handle,
            engine.cancel,
            address=address,
            port=port,
            advice="choose another --http-port or --http-address, or --allow-http=false",
            reuse_port=reuse_port,
            limits=limits,
            tls=tls,
            landing=endpoints.landing,
        )

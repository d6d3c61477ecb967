"""The HTTP frontend: KServe v2 and its extensions on a port."""

from __future__ import annotations

from collections.abc import Callable

from naiad.config.server.access import TlsFiles
from naiad.engine.door import EngineDoor
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.request_reader import RequestLimits
from naiad.frontends.kserve_http.endpoints import Endpoints


class HttpFrontend:
    """KServe v2 over HTTP/1.1 on one port."""

    def __init__(
        self,
        engine: EngineDoor,
        *,
        address: str,
        port: int,
        reuse_port: bool = False,
        max_json: int = 64 << 20,
        limits: RequestLimits | None = None,
        extensions: Extensions | None = None,
        access: Access | None = None,
        tls: TlsFiles | None = None,
        fallback: Callable[[HttpExchange], bool] | None = None,
    ) -> None:
        """A frontend that is not listening yet; see `start`.

        Args:
            engine: Executes the requests.
            address: Address to listen on.
            port: Port to listen on, 0 for any.
            reuse_port: Whether several servers may share the port.
            max_json: Longest JSON of a request in bytes (--http-max-input-size).
            limits: Bounds on requests.
            extensions: What is shared with other frontends.
            access: What is restricted, and which headers are forwarded.
            tls: Certificates; None for plain HTTP.
            fallback: Handles requests for paths that are not KServe's. It returns False for paths it does not know.
        """
        limits = limits or RequestLimits()
        endpoints = Endpoints(
            engine,
            extensions or Extensions(),
            access or Access(),
            max_json=max_json,
            max_body=limits.body_bytes,
            fallback=fallback,
        )
        self._listener = HttpListener(
            endpoints.handle,
            engine.cancel,
            address=address,
            port=port,
            advice="choose another --http-port or --http-address, or --allow-http=false",
            reuse_port=reuse_port,
            limits=limits,
            tls=tls,
            reserve_input=endpoints.reserve_input,
        )

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OptionError: If the address and port are not available.
        """
        return await self._listener.start()

    async def stop(self, grace: float) -> None:
        """Stop listening, wait up to *grace* seconds for responses that are due, and close all connections."""
        await self._listener.stop(grace)

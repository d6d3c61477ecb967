"""The HTTP frontend: KServe v2 and its extensions on a port."""

from __future__ import annotations

from collections.abc import Callable

from naiad.config.server.access import TlsFiles
from naiad.engine.facade import EngineFacade
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.page_guard import PageRules
from naiad.frontends.http1.request_reader import RequestLimits
from naiad.frontends.http1.timeouts import HttpTimeouts
from naiad.frontends.kserve_http.endpoints import Endpoints
from naiad.frontends.listening import Acceptor
from naiad.frontends.open_connections import ConnectionCount


class HttpFrontend:
    """KServe v2 over HTTP/1.1 on one port."""

    def __init__(
        self,
        engine: EngineFacade,
        *,
        address: str,
        port: int,  # port to listen on, 0 for any
        reuse_port: bool = False,
        max_json: int = 64 << 20,  # longest JSON of a request in bytes (--http-max-input-size)
        limits: RequestLimits | None = None,
        extensions: Extensions | None = None,
        access: Access | None = None,
        tls: TlsFiles | None = None,
        fallback: Callable[[HttpExchange], bool] | None = None,  # other paths than KServe's; False if unknown
        admit_fallback: Callable[[Head], bool] = lambda _: False,  # whether it reads the body
        timeouts: HttpTimeouts | None = None,
        count: ConnectionCount | None = None,
        pages: PageRules | None = None,  # which Hosts and which web pages are served; None for the defaults
        acceptor: Acceptor | None = None,  # accepts the connections; None for a server of one process
    ) -> None:
        limits = limits or RequestLimits()
        # Extensions that are not shared are closed with this frontend.
        self._own_background = None
        if extensions is None:
            extensions = Extensions()
            self._own_background = extensions.background
        endpoints = Endpoints(
            engine,
            extensions,
            access or Access(),
            max_json=max_json,
            max_body=limits.body_bytes,
            fallback=fallback,
            admit_fallback=admit_fallback,
        )
        self._listener = HttpListener(
            endpoints.handle,
            address=address,
            port=port,
            advice="choose another --http-port or --http-address, or --allow-http=false",
            reuse_port=reuse_port,
            limits=limits,
            tls=tls,
            memory=extensions.memory,
            admit=endpoints.admit,
            reserve_input=endpoints.reserve_input,
            timeouts=timeouts,
            count=count,
            pages=pages,
            refused=extensions.refusals,
            acceptor=acceptor,
        )

    async def start(self) -> int:
        """Listen; return the port. Raises OptionError if the address and port are not available."""
        return await self._listener.start()

    def drain(self) -> None:
        self._listener.drain()

    async def stop(self, grace: float) -> None:
        """Stop listening, wait up to *grace* seconds for responses that are due, and close all connections."""
        await self._listener.stop(grace)
        if self._own_background is not None:
            await self._own_background.close()

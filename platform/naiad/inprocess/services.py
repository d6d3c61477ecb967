"""Services of a server in this process: HTTP, gRPC and metrics, as in the `tritonfrontend` package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from naiad.config.server.access import TlsFiles, header_pattern
from naiad.frontends.access import Access
from naiad.frontends.grpc.settings import CompressionLevel, GrpcSettings
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.kserve_http.server import HttpFrontend
from naiad.inprocess.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from naiad.inprocess.running import RunningServer
from naiad.inprocess.server import Server

__all__ = ["KServeGrpc", "KServeHttp", "Metrics"]

_GRACE = 2.0
_LARGEST_PORT = 65535


class _Options:
    """Checks that dataclasses of options share."""

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type] # every one below is a dataclass
            value = getattr(self, each.name)
            kind = type(each.default)
            if each.default is not None and type(value) is not kind:
                if kind is CompressionLevel and value in CompressionLevel.__members__:
                    setattr(self, each.name, CompressionLevel[value])
                    continue
                raise ValueError(f"{each.name} must be of type {kind.__name__}, not {value!r}")
        self._check("port", low=0, high=_LARGEST_PORT)
        self._check("thread_count", low=1)

    def _check(self, name: str, *, low: int, high: int | None = None) -> None:
        value = getattr(self, name, low)
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"in {low} to {high}"
            raise ValueError(f"{name} must be {bounds}, not {value}")


class _Service:
    """One service: started, stopped, or both by a `with` block; it ends with its server at the latest."""

    Options: ClassVar[type[Any]]

    def __init__(self, server: Server, options: Any = None) -> None:
        """Prepare; `start` listens.

        Raises:
            InvalidArgumentError: If the server does not run, or the options are of another class.
        """
        if options is not None and not isinstance(options, self.Options):
            raise InvalidArgumentError(
                f"Incorrect type for options. options argument must be of type {type(self).__name__}.Options"
            )
        self._options: Any = self.Options() if options is None else options
        self._running = server._server  # noqa: SLF001 - what is behind a server is no part of the API
        self._end: Callable[[], Awaitable[None]] | None = None
        self.port = 0

    def start(self) -> None:
        """Listen; `port` then is the port, which matters where the options have 0.

        Raises:
            AlreadyExistsError: If it listens.
            InvalidArgumentError: If it cannot listen there.
        """
        if self._end is not None:
            raise AlreadyExistsError("server is already running.")
        begin, self._end = self._made(self._running)
        try:
            self.port = self._running.serve(begin, self._end)
        except BaseException:
            self._end = None
            raise

    def stop(self) -> None:
        """Stop listening, once what is being answered is answered.

        Raises:
            UnavailableError: If it does not listen.
        """
        end, self._end = self._end, None
        if end is None:
            raise UnavailableError("server is not running.")
        self._running.end(end)

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end is not None:
            self.stop()

    def _made(self, running: RunningServer) -> tuple[Callable[[], Awaitable[int]], Callable[[], Awaitable[None]]]:
        """What starts the service and what stops it; both on the server's loop."""
        raise NotImplementedError


class KServeHttp(_Service):
    """HTTP, as of `naiad serve`."""

    @dataclass
    class Options(_Options):
        """Where and how; `thread_count` has no effect, as one event loop serves all connections."""

        address: str = "0.0.0.0"  # noqa: S104 - the package's default
        port: int = 8000
        reuse_port: bool = False
        thread_count: int = 8
        header_forward_pattern: str = ""

    def _made(self, running: RunningServer) -> tuple[Callable[[], Awaitable[int]], Callable[[], Awaitable[None]]]:
        options = self._options

        async def start() -> int:
            # Made here, as all of it belongs to the server's loop.
            self._frontend = HttpFrontend(
                running.engine,
                address=options.address,
                port=options.port,
                reuse_port=options.reuse_port,
                extensions=running.extensions,
                access=_access(options.header_forward_pattern),
            )
            return await self._frontend.start()

        return start, lambda: self._frontend.stop(_GRACE)


class KServeGrpc(_Service):
    """gRPC, as of `naiad serve`."""

    @dataclass
    class Options(_Options):
        """Where and how; threads and pools have no effect, as one event loop serves all connections."""

        address: str = "0.0.0.0"  # noqa: S104
        port: int = 8001
        reuse_port: bool = False
        use_ssl: bool = False
        server_cert: str = ""
        server_key: str = ""
        root_cert: str = ""
        use_mutual_auth: bool = False
        keepalive_time_ms: int = 7_200_000
        keepalive_timeout_ms: int = 20_000
        keepalive_permit_without_calls: bool = False
        http2_max_pings_without_data: int = 2
        http2_min_recv_ping_interval_without_data_ms: int = 300_000
        http2_max_ping_strikes: int = 2
        max_connection_age_ms: int = 0
        max_connection_age_grace_ms: int = 0
        infer_compression_level: CompressionLevel = CompressionLevel.NONE
        infer_thread_count: int = 2
        infer_allocation_pool_size: int = 8
        max_response_pool_size: int = 2_147_483_647
        forward_header_pattern: str = ""

    def _made(self, running: RunningServer) -> tuple[Callable[[], Awaitable[int]], Callable[[], Awaitable[None]]]:
        options = self._options
        settings = GrpcSettings(
            **{each.name: getattr(options, each.name) for each in fields(GrpcSettings) if hasattr(options, each.name)},
            response_compression=options.infer_compression_level,
        )

        async def start() -> int:
            self._frontend = GrpcFrontend(
                running.engine,
                address=options.address,
                port=options.port,
                reuse_port=options.reuse_port,
                settings=settings,
                extensions=running.extensions,
                access=_access(options.forward_header_pattern),
                tls=_tls(options),
            )
            return await self._frontend.start()

        return start, lambda: self._frontend.stop(_GRACE)


class Metrics(_Service):
    """Metrics for Prometheus."""

    @dataclass
    class Options(_Options):
        """Where; `thread_count` has no effect."""

        address: str = "0.0.0.0"  # noqa: S104
        port: int = 8002
        thread_count: int = 1

    def _made(self, running: RunningServer) -> tuple[Callable[[], Awaitable[int]], Callable[[], Awaitable[None]]]:
        frontend = running.metrics_frontend(self._options.address, self._options.port)
        return frontend.start, frontend.stop


def _access(pattern: str) -> Access:
    return Access(forward=header_pattern(pattern) if pattern else None)


def _tls(options: KServeGrpc.Options) -> TlsFiles | None:
    if not options.use_ssl:
        return None
    return TlsFiles(
        certificate=Path(options.server_cert),
        key=Path(options.server_key),
        root=Path(options.root_cert) if options.root_cert else None,
        is_mutual=options.use_mutual_auth,
    )

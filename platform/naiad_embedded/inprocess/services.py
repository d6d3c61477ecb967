"""Network services of a server in this process: HTTP, gRPC and metrics, as in the `tritonfrontend` package.

Names, defaults and error texts are the package's. Each service has its own dataclass `Options` and creates its
frontend on the server's event loop, because a frontend belongs to the loop that it is created on.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeAlias

from naiad.config.server.access import TlsFiles, header_pattern
from naiad.config.server.web_pages import read_hosts, read_origins
from naiad.frontends.access import Access
from naiad.frontends.grpc.settings import CompressionLevel, GrpcSettings
from naiad.frontends.http1.page_guard import PageRules
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.kserve_http.server import HttpFrontend
from naiad.frontends.metrics.server import MetricsFrontend
from naiad_embedded.inprocess.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from naiad_embedded.inprocess.server import Server

_Frontend: TypeAlias = HttpFrontend | GrpcFrontend | MetricsFrontend

_LARGEST_PORT = 65535
_LARGEST_INT = 2_147_483_647


class Grpc_compression_level(enum.IntEnum):  # noqa: N801 - the package's name
    """How hard responses are compressed; `COUNT` is their number and no level."""

    NONE = 0
    LOW = 1
    MED = 2
    HIGH = 3
    COUNT = 4


_LOWEST = {"thread_count": 1}
_HIGHEST = {"port": _LARGEST_PORT, "infer_compression_level": 3}
_INTEGER = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_SWITCHES = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}


class _CheckedOptions:
    """Checks and converts the fields of the dataclasses of options below, as the package's do.

    Numbers and switches may be given as texts, as they come from a configuration or the environment.
    """

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type] # the subclasses are dataclasses
            value = getattr(self, each.name)
            if isinstance(each.default, bool):
                setattr(self, each.name, _switch(each.name, value))
            elif isinstance(each.default, int):
                low, high = _LOWEST.get(each.name, 0), _HIGHEST.get(each.name, _LARGEST_INT)
                setattr(self, each.name, _integer(each.name, value, low, high))
            elif not isinstance(value, str):
                raise ValueError(f"{each.name} must be of type str, not {value!r}")  # noqa: TRY004 - as the package


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if name == "infer_compression_level" and value in Grpc_compression_level.__members__:
        value = Grpc_compression_level[value]
    is_text = isinstance(value, str) and _INTEGER.fullmatch(value)
    is_whole = isinstance(value, float) and value.is_integer()
    if not (isinstance(value, int) or is_whole or is_text):
        raise ValueError(f"{name} must be of type int, not {value!r}")
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be in {low} to {high}, not {value!r}")
    return number


def _switch(name: str, value: Any) -> bool:
    found = _SWITCHES.get(value.strip().lower()) if isinstance(value, str) else None
    if isinstance(value, int | float) and value in (0, 1):
        found = bool(value)
    if found is None:
        raise ValueError(f"{name} must be of type bool, not {value!r}")
    return found


class _Service:
    """One network service: `start`, `stop`, or a `with` block for both; it stops with its server at the latest.

    A subclass says how its frontend is created (`_make_frontend`).
    """

    Options: ClassVar[type[Any]]
    _grace: ClassVar[tuple[float, ...]] = (2.0,)  # seconds for requests in flight when it stops

    def __init__(self, server: Server, options: Any = None) -> None:
        """Prepare the service; `start` opens the port.

        Raises:
            InvalidArgumentError: If the server is not running, or the options are of another class.
        """
        if options is not None and not isinstance(options, self.Options):
            raise InvalidArgumentError(
                f"Incorrect type for options. options argument must be of type {type(self).__name__}.Options"
            )
        self._options: Any = self.Options() if options is None else options
        self._server = server
        self._running = server._server  # noqa: SLF001 - of this package, and not part of the API
        self._frontend: _Frontend | None = None
        self.port = 0

    def start(self) -> None:
        """Open the port; afterwards, `port` is its number, which the system chooses if the options have 0.

        Raises:
            AlreadyExistsError: If the service is started.
            InvalidArgumentError: If the address cannot be used.
        """
        if self._frontend is not None and not self._running.is_stopped:
            raise AlreadyExistsError("server is already running.")
        self._running = self._server._server  # noqa: SLF001 - the server may have been stopped and started again
        self.port, self._frontend = self._running.start_service(self._make_frontend, *self._grace)

    def stop(self) -> None:
        """Close the port, after the requests in flight; if the server has been stopped, the port is closed already.

        Raises:
            UnavailableError: If the service is not started.
        """
        frontend, self._frontend = self._frontend, None
        if frontend is None:
            raise UnavailableError("server is not running.")
        self._running.stop_service(frontend, *self._grace)

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._frontend is not None:
            self.stop()

    def _make_frontend(self) -> _Frontend:
        """The frontend, which is made on the loop that it belongs to."""
        raise NotImplementedError


class KServeHttp(_Service):
    """KServe v2 over HTTP, as in `naiad serve`."""

    @dataclass
    class Options(_CheckedOptions):
        """Options of the HTTP service; `thread_count` has no effect, because one event loop serves all connections.

        `allowed_hosts` and `allowed_origins` are naiad's own, with the values of `--http-allowed-hosts` and
        `--http-allowed-origins`.
        """

        address: str = "0.0.0.0"  # noqa: S104 - the package's default
        port: int = 8000
        reuse_port: bool = False
        thread_count: int = 8
        header_forward_pattern: str = ""
        allowed_hosts: str = ""
        allowed_origins: str = ""

    def _make_frontend(self) -> HttpFrontend:
        options = self._options
        return HttpFrontend(
            self._running.engine,
            address=options.address,
            port=options.port,
            reuse_port=options.reuse_port,
            extensions=self._running.extensions,
            access=_access(options.header_forward_pattern),
            pages=PageRules(
                hosts=read_hosts(options.allowed_hosts) if options.allowed_hosts else None,
                origins=read_origins(options.allowed_origins),
            ),
        )


class KServeGrpc(_Service):
    """KServe v2 over gRPC, as in `naiad serve`.

    Attributes:
        Grpc_compression_level: The values of the option `infer_compression_level`.
    """

    Grpc_compression_level = Grpc_compression_level

    @dataclass
    class Options(_CheckedOptions):
        """Options of the gRPC service; thread counts and pool sizes have no effect: one event loop serves all."""

        address: str = "0.0.0.0"  # noqa: S104 - the package's default
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
        infer_compression_level: int | Grpc_compression_level = Grpc_compression_level.NONE
        infer_thread_count: int = 2
        infer_allocation_pool_size: int = 8
        max_response_pool_size: int = 2_147_483_647
        forward_header_pattern: str = ""

    def _make_frontend(self) -> GrpcFrontend:
        options = self._options
        settings = GrpcSettings(
            **{each.name: getattr(options, each.name) for each in fields(GrpcSettings) if hasattr(options, each.name)},
            response_compression=CompressionLevel(options.infer_compression_level),
        )

        return GrpcFrontend(
            self._running.engine,
            address=options.address,
            port=options.port,
            reuse_port=options.reuse_port,
            settings=settings,
            extensions=self._running.extensions,
            access=_access(options.forward_header_pattern),
            tls=_tls(options),
        )


class Metrics(_Service):
    """The metrics endpoint for Prometheus."""

    @dataclass
    class Options(_CheckedOptions):
        """Options of the metrics endpoint; `thread_count` has no effect."""

        address: str = "0.0.0.0"  # noqa: S104 - the package's default
        port: int = 8002
        thread_count: int = 1

    _grace = ()

    def _make_frontend(self) -> MetricsFrontend:
        return self._running.metrics_frontend(self._options.address, self._options.port)


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

"""What a package beside `naiad` offers to serve a further API on the HTTP ports: today `naiad_llm`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from naiad.config.server.options import ServerOptions
from naiad.core.extensions import load_from_extension
from naiad.engine.facade import EngineFacade
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.messages import HttpExchange
from naiad.protocol.inference import Buffer

MetricsPage: TypeAlias = Callable[[], Awaitable[list[Buffer]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """What such an API needs of the server beside the engine's facade."""

    adapters: Callable[[str, str], Awaitable[Sequence[str]]]  # finds the names of the adapters of a model and version
    context: Callable[[str, str], Awaitable[int]]  # of tokens of a model and version; 0 if unknown
    metrics: MetricsPage | None  # makes the response with all metrics; None where it is not served
    created: int  # when the models were created, as far as clients are told: seconds since 1970
    # Calls a function of `HttpApiPackage.coordinator_services` by its name in the coordinator, and returns its result.
    # None where there is one process.
    ask_coordinator: Callable[..., Any] | None = None


class HttpApi(Protocol):
    """An API on an HTTP port."""

    def handle(self, exchange: HttpExchange) -> None:
        """Respond to a request on a port of its own."""

    def try_handle(self, exchange: HttpExchange) -> bool:
        """Respond to a request if its path belongs to the API; False otherwise."""

    def admit(self, head: Head) -> bool:
        """Whether the body of a request is read."""


class HttpApiPackage(Protocol):
    """The module of a package that makes its API."""

    def make_api(
        self, engine: EngineFacade, options: ServerOptions, extensions: Extensions, services: ApiServices
    ) -> HttpApi:
        """The API, for the listeners of one process."""

    def coordinator_services(self, options: ServerOptions) -> Mapping[str, Callable[..., Any]]:
        """What the APIs of all processes share, as functions that the coordinator calls for them."""

    def adapter_names(self, version: Path) -> Sequence[str]:
        """Names of the adapters of a model's version, from its folder. Reads files: call it on a thread."""

    def context_length(self, version: Path) -> int:
        """The number of tokens that a model's version takes, from its folder; 0 if unknown. Reads files."""


def openai_package() -> HttpApiPackage:
    """The module that makes OpenAI's API; MissingPackageError if it is not installed."""
    package: HttpApiPackage = load_from_extension("naiad_llm.extension:EXTENSION", "serve OpenAI's API (--openai-port)")
    return package

"""Restricted parts of the protocols, and headers that are forwarded to models, as the operator configured them."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from naiad.config.server.access import Restrictions
from naiad.errors import InvalidRequestError
from naiad.protocol.inference import InferRequest

TRACE_HEADERS = ("traceparent", "tracestate")
"""Headers that name the trace of a request (W3C Trace Context), in lower case."""

_MAX_NAMES = 1024
"""Header names whose match with the pattern is remembered."""
_RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "headers"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The restrictions of one frontend, and the headers it forwards.

    Attributes:
        restrictions: Header and value that each restricted part of the protocol requires.
        forward: Pattern for the names of headers that become request parameters; None to forward nothing.
    """

    restrictions: Restrictions = field(default_factory=dict)
    forward: re.Pattern[str] | None = None


def has_value(given: str | bytes | None, expected: bytes) -> bool:
    """Whether a header has the expected value. The time it takes does not depend on how many bytes are right."""
    if given is None:
        return False
    return hmac.compare_digest(given.encode() if isinstance(given, str) else given, expected)


class HeaderForwarder:
    """Turns headers into request parameters (SRV src/http_server.cc, src/grpc/grpc_utils.cc)."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._matches = lru_cache(_MAX_NAMES)(self._match)

    def forward(self, request: InferRequest, headers: Iterable[tuple[str, str]]) -> None:
        """Add the headers whose names match. They replace parameters of the same name.

        Raises:
            InvalidRequestError: If one has the name of a parameter that the server itself reads.
        """
        found = {name: value for name, value in headers if self._matches(name)}
        if found:
            request.parameters = {**request.parameters, **found}

    def _match(self, name: str) -> bool:
        if self._pattern.search(name) is None:
            return False
        if name.lower() in _RESERVED or name.lower().startswith("triton_"):
            raise InvalidRequestError(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        return True

"""What the server's operator lets through: parts of the protocols to those who know a header, headers to models."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from naiad.config.server.access import Restrictions
from naiad.errors import InvalidRequestError
from naiad.protocol.inference import InferRequest

PROPAGATED = ("traceparent", "tracestate")
"""Headers that say to which trace a request belongs (W3C Trace Context), in lower case."""

_NAMES_KEPT = 1024
_RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "headers"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How one frontend is restricted, and what it forwards.

    Attributes:
        restrictions: Headers that parts of the protocol need.
        forward: Pattern of names of headers that become request parameters; None for none.
    """

    restrictions: Restrictions = field(default_factory=dict)
    forward: re.Pattern[str] | None = None


def is_same(given: str | bytes | None, wanted: bytes) -> bool:
    """Whether a header has the wanted value, in a time that does not tell how much of it is right."""
    if given is None:
        return False
    return hmac.compare_digest(given.encode() if isinstance(given, str) else given, wanted)


class HeaderForwarder:
    """Makes request parameters of headers (SRV src/http_server.cc, src/grpc/grpc_utils.cc)."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._matches = lru_cache(_NAMES_KEPT)(self._match)

    def forward(self, request: InferRequest, headers: Iterable[tuple[str, str]]) -> None:
        """Add the headers whose names match; they stand before parameters of the same name.

        Raises:
            InvalidRequestError: If one has a name that means something to the server.
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

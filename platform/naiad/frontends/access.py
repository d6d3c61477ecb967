"""Restricted parts of the protocols, and headers that are forwarded to models, as the operator configured them."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from naiad_stub.memo import Memo

from naiad.config.server.access import Restrictions
from naiad.core.errors import InvalidRequestError
from naiad.protocol.inference import CALL_CHAIN, FORWARDED_HEADERS, InferRequest

PROPAGATED_HEADERS = ("traceparent", "tracestate", CALL_CHAIN)
"""Headers that every request caused by this one carries on, in lower case.

They are the trace of the request (W3C Trace Context), and the servers that it came through (`backends/remote`).
"""

_MAX_NAMES = 1024  # header names whose match with the pattern is remembered
_RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "headers"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The restrictions of one frontend, and the headers it forwards."""

    restrictions: Restrictions = field(default_factory=dict)
    forward: re.Pattern[str] | None = None  # which names of headers become parameters; None to forward nothing


class Denial(NamedTuple):
    """Why a call may not use a restricted part of a protocol."""

    text: str
    wrong_secret: str  # the wrong secret that the client sent, as `RefusalLog` names it; "" if it sent none


class Guard(NamedTuple):
    """The header that a restricted part of a protocol needs, and its value."""

    header: str  # in lower case
    value: bytes

    def denial(self, what: str, given: Sequence[str | bytes]) -> Denial | None:
        """Why a request may not use such a part, an `API` or `protocol`; None if it may.

        A repeated header is denied: programs between client and server may have checked another of its values.
        Text: SRV src/http_server.cc, src/grpc/.
        """
        text = f"This {what} is restricted, expecting header '{self.header}'"
        if len(given) > 1:
            text = f"This {what} is restricted, and header '{self.header}' is repeated; send it once"
        elif any(hmac.compare_digest(each.encode() if isinstance(each, str) else each, self.value) for each in given):
            return None
        return Denial(text, f"header '{self.header}'" if given else "")


class HeaderForwarder:
    """Turns headers into request parameters (SRV src/http_server.cc, src/grpc/grpc_utils.cc)."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._known: Memo[str, bool] = Memo(_MAX_NAMES)

    def forward(
        self, request: InferRequest, headers: Iterable[tuple[str, str]], propagated: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Make parameters of headers whose names match; *propagated* with their names, as clients may send some, too.

        They replace parameters of the same name; InvalidRequestError if the server itself reads that parameter.
        """
        found = {name: value for name, value in headers if self._matches(name)}
        if found:
            request.parameters = {**request.parameters, **found}
            return {**propagated, FORWARDED_HEADERS: ",".join(found)}
        return propagated

    def _matches(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._match(name)
        return known

    def _match(self, name: str) -> bool:
        if self._pattern.search(name) is None:
            return False
        if name.lower() in _RESERVED or name.lower().startswith("triton_"):
            raise InvalidRequestError(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        return True

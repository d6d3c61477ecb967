"""The chain of calls between servers: each remote model adds itself to a header, and rejects a chain it is part of."""

from __future__ import annotations

from typing import FrozenSet, List, Tuple
from urllib.parse import quote, unquote

from naiad_remote.errors import CallError, Cause

HEADER = "naiad-call-chain"
FORWARDED = "naiad-forwarded-headers"  # of the context: names of parameters that the server made from headers
_SEPARATOR = ","


def link(server: str, model: str, version: str) -> str:
    """The link of a chain for a model's version on a server, as it is in the header."""
    return quote(f"{server}/{model}:{version}", safe="-._~/:")


def extend(received: str, own: str, limit: int) -> str:
    """The header for the next call: *received* and *own*, a link; CallError for a cycle, or more links than *limit*."""
    links = [each.strip() for each in received.split(_SEPARATOR) if each.strip()]
    if own in links:
        shown = _show([*links[links.index(own) :], own])
        raise _rejection(f"the chain of calls returns to its caller: {shown}; call a model that does not call this one")
    if len(links) >= limit:
        shown = _show([*links, own])
        raise _rejection(f"the chain of calls has more than {limit} links: {shown}; shorten it, or raise 'max_chain'")
    return _SEPARATOR.join([*links, own])


def _show(links: List[str]) -> str:
    return " -> ".join(unquote(each) for each in links)


def _rejection(problem: str) -> CallError:
    return CallError(Cause.BLOCKED, f"cannot call the remote model: {problem}", "INVALID_ARG")


def read_context(text: str) -> Tuple[str, FrozenSet[str], List[Tuple[str, str]]]:
    """The received chain, names of parameters made from headers, and headers of the trace, from a context (JSON)."""
    import json

    context = json.loads(text)
    if not isinstance(context, dict):
        return "", frozenset(), []
    chain = str(context.pop(HEADER, ""))
    forwarded = frozenset(filter(None, str(context.pop(FORWARDED, "")).split(_SEPARATOR)))
    return chain, forwarded, [(str(name), str(value)) for name, value in context.items()]

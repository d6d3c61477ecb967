"""The states of a model version, and the allowed transitions.

A version serves requests only in READY. LOADING ends in READY or UNAVAILABLE. While its guests restart, a version stays
READY in the index and its readiness is false. While all its instances are given up, the index shows it as UNAVAILABLE;
it recovers by itself, and its state here stays READY.
UNLOADING ends in UNAVAILABLE with the reason "unloaded", or in LOADING if the version is loaded again meanwhile.
"""

from __future__ import annotations

from types import MappingProxyType

from naiad.protocol.metadata import ModelState

# Reason of an UNAVAILABLE version that does not make the server unready in strict mode (CORE src/server.cc).
UNLOADED = "unloaded"

TRANSITIONS = MappingProxyType(
    {
        ModelState.UNKNOWN: frozenset({ModelState.LOADING}),
        ModelState.LOADING: frozenset({ModelState.READY, ModelState.UNAVAILABLE}),
        ModelState.READY: frozenset({ModelState.UNLOADING, ModelState.UNAVAILABLE}),
        ModelState.UNLOADING: frozenset({ModelState.UNAVAILABLE, ModelState.LOADING}),
        ModelState.UNAVAILABLE: frozenset({ModelState.LOADING}),
    }
)


def advance(state: ModelState, following: ModelState) -> ModelState:
    """Return *following* if the transition is allowed; else raise ValueError: a bug of the host."""
    if following not in TRANSITIONS[state]:
        raise ValueError(f"a model version that is {state.value} cannot become {following.value}")
    return following

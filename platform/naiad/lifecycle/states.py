"""The states of a model version and what may follow what.

Rules: a version serves only in READY. LOADING may end in READY or UNAVAILABLE. A READY version that loses all its
instances for good becomes UNAVAILABLE; one that merely restarts them stays READY in the index, while its readiness
says no. UNLOADING ends in UNAVAILABLE with the reason "unloaded", unless the version is loaded again meanwhile.
"""

from __future__ import annotations

from types import MappingProxyType

from naiad.protocol.metadata import ModelState

UNLOADED = "unloaded"
"""The reason that strict readiness tolerates (CORE src/server.cc)."""

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
    """The following state.

    Raises:
        ValueError: If it may not follow; a fault of ours, not of a user.
    """
    if following not in TRANSITIONS[state]:
        raise ValueError(f"a model version that is {state.value} cannot become {following.value}")
    return following

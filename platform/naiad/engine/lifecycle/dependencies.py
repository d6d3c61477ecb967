"""The order in which models are loaded and unloaded where some depend on others. Pure: models are names.

Ensembles depend on the models of their steps, which may be ensembles themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

# The models that each model directly depends on; models without dependencies may be left out.
Dependencies = Mapping[str, Collection[str]]


def load_waves(names: Iterable[str], dependencies: Dependencies) -> list[list[str]]:
    """Group *names* so that each comes in a later group than its dependencies.

    Names that depend on each other in a cycle come in one group, before those that depend on them.
    """
    remaining = dict.fromkeys(names)
    waves = []
    while remaining:
        wave = [
            name
            for name in remaining
            if not any(other in remaining for other in dependencies.get(name, ()) if other != name)
        ]
        # No such name: every remaining one is in a cycle or depends on one. The cycles come first.
        wave = wave or [name for name in remaining if find_cycle(name, dependencies)]
        waves.append(wave)
        for name in wave:
            del remaining[name]
    return waves


def find_cycle(name: str, dependencies: Dependencies) -> str:
    """The last model of a cycle that leads from *name* back to it; empty without one."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if name in dependencies.get(current, ()):
            return current
        pending += dependencies.get(current, ())
    return ""


def all_dependencies(name: str, dependencies: Dependencies) -> set[str]:
    """All models that *name* depends on, directly or indirectly."""
    found: set[str] = set()
    pending = [name]
    while pending:
        for other in dependencies.get(pending.pop(), ()):
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


def dependents(name: str, dependencies: Dependencies) -> list[str]:
    """All models that depend on *name*, directly or indirectly, each before its own dependencies."""
    found = [other for other in dependencies if name in all_dependencies(other, dependencies) and other != name]
    return [other for wave in reversed(load_waves(found, dependencies)) for other in wave]

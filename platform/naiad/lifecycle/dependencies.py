"""In which order models are loaded and unloaded where some need others. Pure: models are names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

__all__ = ["Needs", "closure", "dependents", "find_cycle", "waves"]

Needs = Mapping[str, Collection[str]]
"""What each model needs; those that need nothing may be left out."""


def waves(names: Iterable[str], needs: Needs) -> list[list[str]]:
    """Group *names* so that each comes after those that it needs.

    Names that need each other in a circle come together, before those that need them.
    """
    left = dict.fromkeys(names)
    result = []
    while left:
        wave = [name for name in left if not any(need in left for need in needs.get(name, ()) if need != name)]
        wave = wave or [name for name in left if find_cycle(name, needs)]
        result.append(wave)
        for name in wave:
            del left[name]
    return result


def find_cycle(name: str, needs: Needs) -> str:
    """The last model on a circle that leads from *name* back to it; empty if there is none."""
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        current = ahead.pop()
        if current in seen:
            continue
        seen.add(current)
        if name in needs.get(current, ()):
            return current
        ahead += needs.get(current, ())
    return ""


def closure(name: str, needs: Needs) -> set[str]:
    """All that *name* needs, over any number of others."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        for need in needs.get(ahead.pop(), ()):
            if need not in found:
                found.add(need)
                ahead.append(need)
    return found


def dependents(name: str, needs: Needs) -> list[str]:
    """All that need *name*, over any number of others, each before those that it needs itself."""
    found = [other for other in needs if name in closure(other, needs) and other != name]
    return [other for wave in reversed(waves(found, needs)) for other in wave]

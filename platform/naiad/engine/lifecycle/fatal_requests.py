"""Which requests end guest after guest: a pure decision from the digests of the requests in flight at each exit.

A request whose digest was in flight at EXITS_TO_REFUSE exits, and that no guest answered in between, is refused for
REFUSED_SECONDS. After that it is tried once more: a further exit refuses it again. A success clears a digest, so that a
request sent all the time, such as a probe, is not blamed for exits that others cause.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field

EXITS_TO_REFUSE = 3
REFUSED_SECONDS = 600.0
_REMEMBERED_SECONDS = 600.0  # how long a digest is remembered after the last exit, or after its refusal has ended
_MAX_SUSPECTS = 256


@dataclass(slots=True)
class _Suspect:
    exits: list[float] = field(default_factory=list)
    cause: str = ""
    refused_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused."""

    exits: int
    cause: str
    seconds: float


class FatalRequests:
    """The suspected and refused requests of one model version, by digest. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._suspects: dict[Hashable, _Suspect] = {}

    def __bool__(self) -> bool:
        return bool(self._suspects)

    def on_exit(self, digests: Collection[Hashable], cause: str, now: float) -> frozenset[float]:
        """A guest exited while the requests with these digests were executed.

        Returns:
            If any of these requests is refused from now on: the times of all exits that it is blamed for, this one
            included. These exits say nothing about the model.
        """
        self.forget_old(now)
        blamed: set[float] = set()
        for digest in digests:
            suspect = self._suspects.setdefault(digest, _Suspect())
            suspect.exits.append(now)
            suspect.cause = cause
            if len(suspect.exits) >= EXITS_TO_REFUSE:
                suspect.refused_until = now + REFUSED_SECONDS
                blamed.update(suspect.exits)
        while len(self._suspects) > _MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
        return frozenset(blamed)

    def on_success(self, digest: Hashable) -> None:
        suspect = self._suspects.get(digest)
        if suspect is not None and not suspect.refused_until:
            del self._suspects[digest]

    def digests(self) -> Iterator[Hashable]:
        return iter(self._suspects)

    def is_suspect(self, digest: Hashable) -> bool:
        """Whether a request with that digest was in flight at an exit, and was not answered since."""
        return digest in self._suspects

    def refusal(self, digest: Hashable, now: float) -> Refusal | None:
        suspect = self._suspects.get(digest)
        if suspect is None or suspect.refused_until <= now:
            return None
        return Refusal(len(suspect.exits), suspect.cause, suspect.refused_until - now)

    def refusals(self, now: float) -> list[Refusal]:
        found = (self.refusal(digest, now) for digest in self._suspects)
        return [refusal for refusal in found if refusal is not None]

    def forget_old(self, now: float) -> None:
        for digest, suspect in list(self._suspects.items()):
            if now >= max(suspect.exits[-1], suspect.refused_until) + _REMEMBERED_SECONDS:
                del self._suspects[digest]

"""When a guest that died is started again: exponential back-off and a limit, as a pure decision."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY = 0.1
LONGEST_DELAY = 10.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often an instance may be restarted.

    Attributes:
        limit: Restarts allowed within the window.
        window: Length of the window in seconds.
    """

    limit: int = 5
    window: float = 60.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the instance again after *delay* seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave the instance dead; *deaths* within the window were too many."""

    deaths: int


class RestartBook:
    """Deaths of one instance, and what follows from them."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths: list[float] = []

    def died(self, now: float) -> Restart | GiveUp:
        """Decide what follows a death at *now* (seconds of any steady clock).

        The first restart comes after 0.1 s, each further one within the window after twice as long.
        """
        self._deaths = [death for death in self._deaths if now - death < self._policy.window]
        self._deaths.append(now)
        deaths = len(self._deaths)
        if deaths > self._policy.limit:
            return GiveUp(deaths)
        return Restart(min(FIRST_DELAY * 2 ** (deaths - 1), LONGEST_DELAY))

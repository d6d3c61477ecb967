"""When a guest that exited is restarted: exponential back-off and a limit, as a pure decision.

Restarts follow 0.1 s, 0.2 s, 0.4 s ... up to 10 s after the exit. More exits than the limit within the window
(`--stub-restart-limit`, `--stub-restart-window-secs`) make the instance fail for good.
"""

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
    """Decision: restart the instance after *delay* seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Decision: do not restart the instance; its guests exited *exits* times within the window."""

    exits: int


class RestartTracker:
    """Recent exits of the guests of one instance, and the decision after each."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._exits: list[float] = []

    def on_exit(self, now: float) -> Restart | GiveUp:
        """Decide what follows an exit at *now* (seconds of any monotonic clock)."""
        self._exits = [time for time in self._exits if now - time < self._policy.window]
        self._exits.append(now)
        exits = len(self._exits)
        if exits > self._policy.limit:
            return GiveUp(exits)
        return Restart(min(FIRST_DELAY * 2 ** (exits - 1), LONGEST_DELAY))

"""When a guest that exited is restarted: exponential back-off, a limit, and recovery after it, as a pure decision.

Restarts follow 0.1 s, 0.2 s, 0.4 s ... up to 10 s after the exit. After more exits than the limit within the window
(`--stub-restart-limit`, `--stub-restart-window-secs`) the instance is given up. It recovers by itself: after a pause
(`--stub-recovery-secs`) one guest is tried. If that guest fails to start, or exits before it has served for a whole
window, the instance is given up again, for a pause twice as long, up to ten minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FIRST_DELAY = 0.1
LONGEST_DELAY = 10.0
LONGEST_PAUSE = 600.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often an instance may be restarted."""

    limit: int = 5  # restarts allowed within the window; 0 for never, and no recovery either
    window: float = 60.0
    recovery: float = 30.0  # seconds until an instance that was given up is tried again for the first time; 0 for never


@dataclass(frozen=True, slots=True)
class Restart:
    """Decision: restart the instance after *delay* seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Decision: give the instance up."""

    exits: int
    pause: float | None  # seconds until one guest is to be tried; None for never
    # Whether the guest was the one with which recovery was tried; it had not served for a window.
    is_recovery: bool = False


class RestartTracker:
    """Recent exits of the guests of one instance, and the decision after each."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._exits: list[float] = []  # none while a recovery is being tried
        self._pause = 0.0  # before the recovery that is being tried; 0 if none is
        self._serves_since: float | None = None  # since when the guest of that recovery serves

    def on_exit(self, now: float) -> Restart | GiveUp:
        policy = self._policy
        if self._pause and (self._serves_since is None or now - self._serves_since < policy.window):
            return GiveUp(1, self._next_pause(2 * self._pause), is_recovery=True)
        self._pause = 0.0
        self._exits = [time for time in self._exits if now - time < policy.window]
        self._exits.append(now)
        exits = len(self._exits)
        if exits > policy.limit:
            self._exits = []
            return GiveUp(exits, self._next_pause(policy.recovery) if policy.limit else None)
        return Restart(min(FIRST_DELAY * 2 ** (exits - 1), LONGEST_DELAY))

    def forget_exits(self, times: Collection[float]) -> None:
        """Forget exits at these times: a request that is refused from now on caused them."""
        self._exits = [time for time in self._exits if time not in times]

    def on_recovered(self, now: float) -> None:
        """The guest with which recovery is tried serves since *now*."""
        self._serves_since = now

    def _next_pause(self, pause: float) -> float | None:
        self._pause = min(pause, LONGEST_PAUSE)
        self._serves_since = None
        return self._pause or None

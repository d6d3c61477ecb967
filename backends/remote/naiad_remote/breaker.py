"""The circuit breaker of one target: a state machine whose caller passes the time."""

from __future__ import annotations

import enum


class BreakerState(enum.IntEnum):
    """States of a breaker; the numbers are those of the metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """Opens after a number of consecutive failures; after a pause it admits one call, the probe, which decides."""

    __slots__ = ("_count", "_failures", "_is_probing", "_pause", "_retry_at")

    def __init__(self, failures: int, pause: float) -> None:
        self._failures = failures  # consecutive failures that open it; 0 for a breaker that never opens
        self._pause = pause  # seconds from the last failure to the probe
        self._count = 0  # consecutive failures so far
        self._retry_at = -1.0  # negative while closed
        self._is_probing = False

    @property
    def count(self) -> int:
        return self._count

    def state(self, now: float) -> BreakerState:
        if self._retry_at < 0:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._is_probing or now >= self._retry_at else BreakerState.OPEN

    def can_call(self, now: float) -> bool:
        return self._retry_at < 0 or (now >= self._retry_at and not self._is_probing)

    def wait_seconds(self, now: float) -> float:
        """Seconds until a probe is admitted; 0 if a call or a probe is admitted now."""
        return max(0.0, self._retry_at - now)

    def begin(self) -> bool:
        """Count a call that was admitted; return whether it is the probe."""
        self._is_probing = self._retry_at >= 0
        return self._is_probing

    def on_success(self, *, is_probe: bool) -> None:
        """The target responded. A call from before the breaker opened does not close it."""
        if is_probe or self._retry_at < 0:
            self._count = 0
            self._retry_at = -1.0
            self._is_probing = False

    def on_failure(self, now: float, *, is_probe: bool) -> None:
        """The target failed. A call from before the breaker opened does not prolong the pause."""
        if not is_probe and self._retry_at >= 0:
            return
        self._count += 1
        if is_probe or (self._failures and self._count >= self._failures):
            self._retry_at = now + self._pause
            self._is_probing = False

    def on_neutral(self, *, is_probe: bool) -> None:
        """The call ended without saying anything about the target: the next call is the probe."""
        if is_probe:
            self._is_probing = False

"""Whether a guest that has requests makes progress: it responds, or calls other models.

No guest is restarted unless the model or the server has a limit (HANG_SECONDS, `--stub-hang-seconds`): only the
model's author knows how long `execute` may take. Without one, an `execute` without progress for a minute is reported.
No time counts in which the guest has no requests, or waits for others: for results of its calls, or until a client has
received earlier responses.
"""

from __future__ import annotations

_CHECKS = 8
_LONGEST_CHECK_SECONDS = 1.0

STALLED_SECONDS = 60.0  # an `execute` without progress for so long is reported where nothing limits it

# After so long without a response, those of a guest without a limit are observed, too; of most guests none ever is.
OBSERVED_SECONDS = 5.0

STACKS_SECONDS = 0.5  # how long a guest that hangs has to write its stacks before it is killed


class HangWatch:
    """The time without progress of one guest. Times are seconds of a monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.check_seconds = min(seconds / _CHECKS, _LONGEST_CHECK_SECONDS)
        self.is_hung = False
        self._last = 0.0

    def record(self, now: float) -> None:
        self._last = now

    def since_progress(self, now: float, sent: float) -> float:
        return now - max(self._last, sent)

    def check(self, now: float, sent: float) -> bool:
        """Whether a guest whose oldest batch was sent at *sent* (0: it executes none) made no progress for too long."""
        self.is_hung = self.since_progress(now, sent) > self.seconds
        return self.is_hung

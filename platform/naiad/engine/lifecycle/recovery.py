"""When a version whose instances are all given up is tried again, and whether it counts as lost, as a pure decision.

Each instance recovers by itself (`restart`). While no instance serves, one guest at a time is tried: the others wait
for the next pause. A version is lost once `TRIALS_UNTIL_LOST` trials in a row have failed, or where none is made.
"""

from __future__ import annotations

import math

TRIALS_UNTIL_LOST = 3  # trials that fail in a row before a version counts as lost


class RecoveryTrials:
    """The trials of one version. Times are seconds of any monotonic clock."""

    def __init__(self, window: float) -> None:
        self.window = window  # a guest that has served for so many seconds ends the row of failed trials
        self._next = 0.0  # while no instance serves, no guest is tried before this time
        self._given_up = 0  # times in a row that the last instance was given up, with no window of service in between
        self._serves_since = -math.inf  # since when the guest of the latest trial served

    @property
    def is_lost(self) -> bool:
        """Whether the version is lost if it does not serve now: the first time that it is given up is no trial."""
        return self._given_up > TRIALS_UNTIL_LOST

    def on_given_up(self, now: float, pause: float | None, *, has_served: bool) -> None:
        """The last instance was given up for *pause* seconds (None: for ever).

        Without *has_served*, no guest has served since the time before: this trial did not even start.
        """
        self._next = now + (pause or 0.0)
        if has_served and now - self._serves_since >= self.window:
            self._given_up = 0
        self._given_up += 1 if pause is not None else TRIALS_UNTIL_LOST + 1

    def on_serving(self, now: float) -> None:
        self._serves_since = now

    def delay(self, now: float) -> float:
        """How many seconds an instance still has to wait before it tries a guest; at most 0 if it may try one now."""
        return self._next - now

"""What property tests of schedulers that look at the time have in common."""

from __future__ import annotations

from engine.scheduling.requests import MS
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule


class Clocked(RuleBasedStateMachine):
    """Lets time pass for `scheduler` and gives what that decides to `take`; a subclass sets both, and `now` to 0."""

    @rule(ms=st.integers(0, 25))
    def time_passes(self, ms):
        self.now += ms * MS
        self.take(self.scheduler.wake(self.now))

    @rule()
    def time_passes_to_the_wakeup(self):
        at = self.scheduler.next_wakeup()
        if at is not None:
            self.now = max(self.now, at)
            self.take(self.scheduler.wake(self.now))

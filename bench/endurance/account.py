"""What a load sent, what came back, and what must not have happened."""

from __future__ import annotations

import dataclasses

_MOST_TOLD = 10


@dataclasses.dataclass
class Account:
    """Kept by all clients of one load together.

    Attributes:
        sent: Requests sent.
        answered: Requests with a whole and right answer.
        given_up: Requests that the client itself gave up on purpose.
        responses: Responses of all requests that were right.
        violations: What must not have happened; the first few in words.
        violation_count: How often it did.
    """

    sent: int = 0
    answered: int = 0
    given_up: int = 0
    responses: int = 0
    violations: list[str] = dataclasses.field(default_factory=list)
    violation_count: int = 0

    def wrong(self, what: str) -> None:
        """Note a violation."""
        self.violation_count += 1
        if len(self.violations) < _MOST_TOLD:
            self.violations.append(what)

    def settle(self) -> None:
        """After all clients have ended: whatever was sent was answered or given up."""
        missing = self.sent - self.answered - self.given_up
        if missing and not self.violation_count:
            self.wrong(f"{missing} of {self.sent} requests were neither answered nor given up")

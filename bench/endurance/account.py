"""Counts of the requests and responses of a load, and its violations."""

from __future__ import annotations

import dataclasses

_MAX_DESCRIBED = 10


@dataclasses.dataclass
class Account:
    """The counts of one load; all its clients share one object.

    Attributes:
        sent: Requests sent.
        answered: Requests with a complete and correct response.
        given_up: Requests that the client cancelled on purpose.
        responses: Correct responses of all requests.
        violations: Descriptions of the first violations.
        violation_count: Number of all violations.
    """

    sent: int = 0
    answered: int = 0
    given_up: int = 0
    responses: int = 0
    violations: list[str] = dataclasses.field(default_factory=list)
    violation_count: int = 0

    def wrong(self, what: str) -> None:
        """Record a violation."""
        self.violation_count += 1
        if len(self.violations) < _MAX_DESCRIBED:
            self.violations.append(what)

    def settle(self) -> None:
        """Check, after all clients have ended, that each request was answered or cancelled."""
        missing = self.sent - self.answered - self.given_up
        if missing and not self.violation_count:
            self.wrong(f"{missing} of {self.sent} requests were neither answered nor cancelled")

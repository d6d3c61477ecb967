"""What the doctor finds: each with what is wrong, where, and what to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["Finding", "Report", "Severity"]


class Severity(enum.Enum):
    """How bad it is."""

    ERROR = "error"
    """The model or server would not start, or fail every request."""

    WARNING = "warning"
    """It may fail, or not as it is meant."""

    NOTE = "note"
    """It works, and not everything the code foresees is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        severity: How bad it is.
        code: What kind of thing it is, in a word that scripts may rely on (docs/reference/doctor.md).
        message: What is wrong.
        advice: What to do.
        model: The model it concerns, empty for the server or machine.
        version: The version of it, None for all.
        where: File, with line where there is one; empty for none.
    """

    severity: Severity
    code: str
    message: str
    advice: str
    model: str = ""
    version: int | None = None
    where: str = ""


@dataclass(slots=True)
class Report:
    """One examination.

    Attributes:
        repositories: What was examined.
        models: How many models.
        findings: What was found, models in order, the machine last.
    """

    repositories: tuple[str, ...]
    models: int = 0
    findings: list[Finding] = field(default_factory=list)

    def count(self, severity: Severity) -> int:
        """How many findings of a severity there are."""
        return sum(finding.severity is severity for finding in self.findings)
